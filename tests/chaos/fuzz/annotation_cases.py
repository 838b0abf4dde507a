"""Damaged annotations of every benchmark, own tables of questions, and the harnesses' files."""

from __future__ import annotations

import csv
import io
import json
import random
import shutil
from collections.abc import Callable
from functools import cache
from pathlib import Path
from tempfile import mkdtemp
from typing import Any

import pandas as pd

from jobs.harness.predictions import (
    answer_rows,
    read_lmms_eval,
    read_vlmevalkit,
    write_lmms_eval,
    write_vlmevalkit,
)
from tango_core.benchmarks import build_benchmark
from tests.chaos.fuzz.cases import Outcome
from tests.chaos.fuzz.commands import RefusedError, WrongEndError, tango, told
from tests.chaos.fuzz.damage import apply, draw
from tests.chaos.fuzz.values import damaged_text, mutated
from tests.fixtures import releases as r

_WHOLE = 40
_RELEASES: tuple[tuple[str, Callable[[Path], Path]], ...] = (
    ("videomme", r.videomme_release),
    ("videomme", r.videomme_vlmevalkit),
    ("longvideobench", r.longvideobench_release),
    ("longvideobench", r.longvideobench_parquet),
    ("longvideobench", r.longvideobench_vlmevalkit),
    ("mlvu", r.mlvu_release),
    ("mlvu", r.mlvu_lmms_eval),
    ("mvbench", r.mvbench_main),
    ("mvbench", r.mvbench_cut),
    ("tempcompass", r.tempcompass_release),
    ("tempcompass", r.tempcompass_authors),
    ("tempcompass", r.tempcompass_vlmevalkit),
    ("lvbench", r.lvbench_authors),
    ("lvbench", r.lvbench_release),
)
_OWN = [
    {"video": "a.mp4", "question": "What?", "options": ["a", "b"], "answer": "a", "start": 0.5}
    | {"end": 2, "kind": "x"},
    {"video": "b.mp4", "question": "How many?", "options": "1|2|3", "answer": "B", "end": 3.5},
]


def run_annotation_case(seed: int, folder: Path) -> Outcome:
    """Damage one file of annotations or of replies, and read it."""
    dice = random.Random(f"annotations {seed}")
    if dice.random() < 0.35:
        return _harness_case(seed, dice, folder)
    at = dice.randrange(len(_RELEASES) + 2)
    root = folder / "release"
    shutil.rmtree(root, ignore_errors=True)
    name = _write_own(root, at % 2 == 0) if at >= len(_RELEASES) else _RELEASES[at][0]
    if at < len(_RELEASES):
        shutil.copytree(original_release(at), root)
    path = dice.choice(sorted(p for p in root.rglob("*") if p.stat().st_size and p.is_file()))
    done = _damage(path, dice)

    def read() -> None:
        benchmark = build_benchmark(name, root=str(root))
        list(benchmark.items())
        benchmark.defects()

    def command() -> None:
        tango("data", "check", name, root)

    return _ended(f"{name}: {path.name}", done, read if seed % _WHOLE else command, seed % _WHOLE)


def _harness_case(seed: int, dice: random.Random, folder: Path) -> Outcome:
    at = dice.randrange(len(_RELEASES))
    form = dice.choice(("vlmevalkit", "lmms_eval"))
    if _RELEASES[at][0] == "lvbench":  # which VLMEvalKit does not have
        form = "lmms_eval"
    original = replies_of_release(at, form)
    shutil.rmtree(folder / "replies", ignore_errors=True)
    paths = [folder / "replies" / "model" / p.name for p in original]
    for path, one in zip(paths, original, strict=True):
        path.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(one, path)
    path = dice.choice(paths)
    done = _damage(path, dice)
    benchmark = _benchmark(at)
    partial = dice.random() < 0.5

    def read() -> None:
        if form == "vlmevalkit":
            read_vlmevalkit(paths[0], benchmark, partial=partial)
        else:
            read_lmms_eval(paths, benchmark, partial=partial)

    def command() -> None:
        about = ("--format", form, "--benchmark", _RELEASES[at][0], "--root", original_release(at))
        tango("import", *paths, *about, "--output", folder / "imported")

    return _ended(f"{form}: {path.suffix}", done, read if seed % _WHOLE else command, seed % _WHOLE)


def _ended(about: str, done: list[str], read: Callable[[], None], part: int) -> Outcome:
    try:
        if part:
            told(read)
        else:
            read()
    except RefusedError as refused:
        return Outcome("annotations", about, "refused in one line", "", tuple(done), str(refused))
    except WrongEndError as error:
        return Outcome("annotations", about, "traceback", str(error), tuple(done))
    return Outcome("annotations", about, "read", "", tuple(done))


def _damage(path: Path, dice: random.Random) -> list[str]:
    """Change a file: its values if it holds any that are known, its bytes otherwise."""
    done: list[str] = []
    data = path.read_bytes()
    if path.suffix == ".parquet":
        rows = _plain(pd.read_parquet(path).to_dict("records"))
        try:
            pd.DataFrame(mutated(rows, dice, done)).to_parquet(path)
        except Exception:  # Arrow has no type for such columns
            done.clear()
        if not done or dice.random() < 0.4:
            changes = draw(data, dice)
            done[:] = [str(change) for change in changes]
            path.write_bytes(apply(data, changes))
    elif dice.random() < 0.35:
        path.write_bytes(damaged_text(data, dice, done))
    elif path.suffix == ".json":
        path.write_text(json.dumps(mutated(json.loads(data), dice, done)))
    elif path.suffix == ".jsonl":
        rows = mutated([json.loads(line) for line in data.decode().splitlines()], dice, done)
        rows = rows if isinstance(rows, list) else [rows]
        path.write_text("\n".join(map(json.dumps, rows)))
    else:
        _damage_table(path, data.decode(), dice, done)
    return done


def _damage_table(path: Path, text: str, dice: random.Random, done: list[str]) -> None:
    separator = "\t" if path.suffix == ".tsv" else ","
    rows: Any = mutated(list(csv.reader(io.StringIO(text), delimiter=separator)), dice, done)
    rows = rows if isinstance(rows, list) else [rows]
    with path.open("w", encoding="utf-8", newline="") as file:
        writer = csv.writer(file, delimiter=separator)
        writer.writerows(row if isinstance(row, list) else [row] for row in rows)


def _plain(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _plain(one) for key, one in value.items()}
    if hasattr(value, "tolist"):
        return _plain(value.tolist())
    return [_plain(one) for one in value] if isinstance(value, (list, tuple)) else value


def _write_own(root: Path, as_csv: bool) -> str:
    root.mkdir(parents=True)
    if as_csv:
        rows = [{**row, "options": "|".join(row["options"])} for row in _OWN]  # type: ignore[arg-type]
        pd.DataFrame(rows).to_csv(root / "questions.csv", index=False)
    else:
        (root / "questions.jsonl").write_text("\n".join(map(json.dumps, _OWN)))
    return "custom"


@cache
def original_release(at: int) -> Path:
    return _RELEASES[at][1](Path(mkdtemp(prefix="fuzz-")) / "release")


@cache
def _benchmark(at: int) -> Any:
    return build_benchmark(_RELEASES[at][0], root=str(original_release(at)))


@cache
def replies_of_release(at: int, form: str) -> list[Path]:
    """Files of a harness with replies to every question, in a folder of their own."""
    benchmark = _benchmark(at)
    texts = ("A", "(B)", 'It is "C".\nI think', "", "D. Four", "nan")
    replies = {
        record.question.id: texts[number % len(texts)]
        for number, record in enumerate(benchmark.records())
    }
    rows = answer_rows(replies, benchmark, "full", Path("run"))
    folder = Path(mkdtemp(prefix="fuzz-"))
    if form == "lmms_eval":
        return write_lmms_eval(rows, benchmark, folder)
    path = folder / ("replies.json" if at % 2 else "replies.tsv")
    write_vlmevalkit(rows, benchmark, path)
    return [path]
