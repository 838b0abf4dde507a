"""Damaged files of the program itself: token caches, shards, all that is in a run's folder."""

from __future__ import annotations

import json
import random
import shutil
from collections.abc import Callable
from contextlib import suppress
from functools import cache
from pathlib import Path
from tempfile import mkdtemp
from typing import Any

import pandas as pd
import torch

from jobs.cache.table import cache_table
from jobs.config.recipe import parse_job
from jobs.config.sections import BenchmarkSection
from jobs.harness.exchange import ImportSettings, export_run, import_answers
from jobs.results.facts import JobFacts
from jobs.results.summary import read_answers, write_summary
from pipeline.cache.compact import compact_cache
from pipeline.cache.directory import TokenCache
from pipeline.cache.folders import find_caches
from pipeline.cache.shards import read_index, write_index
from pipeline.progress.parts import AnswerParts
from pipeline.storage import Storage
from pipeline.storage.leases import Lease
from pipeline.storage.seal import read_sealed, write_sealed
from tests.chaos.fuzz.annotation_cases import original_release, replies_of_release
from tests.chaos.fuzz.cases import Outcome
from tests.chaos.fuzz.commands import RefusedError, WrongEndError, tango, told
from tests.chaos.fuzz.damage import apply, draw
from tests.chaos.fuzz.values import damaged_text, mutated
from tests.fixtures.filled_caches import fill, key_of

_CLIPS = (1, 2, 3)
_WHOLE = 30


def run_file_case(seed: int, folder: Path) -> Outcome:
    """Damage one file, then read all that it belongs to."""
    dice = random.Random(f"files {seed}")
    kind = dice.choice(("cache", "cache", "shards", "run", "run", "run"))
    root = folder / kind
    shutil.rmtree(root, ignore_errors=True)
    shutil.copytree(_original(kind), root)
    files = sorted(p for p in root.rglob("*") if p.is_file() and p.suffix not in (".png", ".html"))
    path = dice.choice(files)
    done = damage_file(path, files, dice)
    about = f"{kind}: {'*' if kind != 'run' and path.suffix == '.parquet' else ''}"
    about += path.suffix if about.endswith("*") else _general(path.name)
    check = _read_run if kind == "run" else _read_cache
    try:
        what, problem = check(root, seed), ""
    except WrongEndError as error:
        what, problem = "wrong", str(error)
    return Outcome("files", about, what, problem, tuple(done))


def _general(name: str) -> str:
    return "answers" if name.startswith("part-") else name


def damage_file(path: Path, files: list[Path], dice: random.Random) -> list[str]:
    """Damage a file as its kind invites it, lose it, or put another one in its place.

    Returns:
        What was done, in words.
    """
    done: list[str] = []
    data = path.read_bytes()
    how = dice.random()
    if how < 0.08:
        path.unlink()
        return ["lost"]
    if how < 0.14:
        other = dice.choice(files)
        shutil.copy(other, path) if other != path else None
        return [f"replaced by {other.name}"]
    if path.suffix == ".json" and how < 0.75:
        path.write_text(json.dumps(mutated(json.loads(data), dice, done)))
    elif path.suffix in (".json", ".yaml", ".jsonl", ".digest"):
        path.write_bytes(damaged_text(data, dice, done))
    else:
        changes = draw(data, dice)
        done = [str(change) for change in changes]
        path.write_bytes(apply(data, changes))
    return done


def _read_cache(root: Path, seed: int) -> str:
    """What is read of a cache is what was written, or an error says that it is not."""
    identity, original = _tokens()
    folders = [p for p in root.iterdir() if p.is_dir()]
    cache_ = TokenCache(str(root), *identity)
    bad = 0
    for key, right in original.items():
        try:
            entry = told(lambda key=key: cache_.read(key))
        except RefusedError:
            bad += 1
            continue
        if not (
            torch.equal(entry.video.tokens, right.tokens)
            and torch.equal(entry.video.indices, right.indices)
            and entry.video.grid == right.grid
            and torch.equal(entry.video.timestamps, right.timestamps)
        ):
            raise WrongEndError(f"clip {key} is read with other tokens than were written")
    for look in (cache_.keys, lambda: read_index(cache_.storage)):
        with suppress(RefusedError):
            told(look)
    with suppress(RefusedError):
        told(lambda: cache_table(find_caches(str(root))))
    with suppress(RefusedError):
        code, text = tango("cache", "verify", "--cache", root)
        if code == 0 and bad and f"{len(original) - bad} clips" not in text:
            raise WrongEndError(f"{bad} clips cannot be read, and verify says {text!r}")
    if seed % _WHOLE == 0:
        for command in ("ls", "compact", "gc"):
            with suppress(RefusedError):
                tango("cache", command, "--cache", root)
        with suppress(RefusedError):
            tango("cache", "export", folders[0].name, root / "out", "--cache", root)
    return f"{bad} of {len(original)} clips refused" if bad else "nothing lost"


def _read_run(root: Path, seed: int) -> str:
    """Answers are those that were written, or an error says that they are not."""
    run = next(p for p in root.iterdir() if p.is_dir())
    refused = []
    for name, function in _readers(run).items():
        try:
            told(function)
        except RefusedError:
            refused.append(name)
    try:
        answers = told(lambda: read_answers(run))
    except RefusedError:
        refused.append("answers")
    else:
        if not answers.equals(_answers()):
            raise WrongEndError("answers are read that were not written")
    if seed % _WHOLE == 0:
        with suppress(RefusedError):
            tango("report", run, "--output", root / "report")
        with suppress(RefusedError):
            tango("export", run, "--format", "vlmevalkit", "--output", root / "export")
    kept = told(
        lambda: [
            row
            for table in AnswerParts(run / "answers", set_aside=True).whole_clips()
            for row in table.to_pylist()
        ]
    )
    known = _answers().to_dict("records")
    if len(kept) not in (0, len(known)):
        raise WrongEndError(f"{len(kept)} of {len(known)} answers are kept of one damaged part")
    return f"refused: {', '.join(refused)}" if refused else "nothing lost"


def _readers(run: Path) -> dict[str, Callable[[], object]]:
    def take_lease() -> None:
        lease = Lease(Storage.at(run))
        lease.take()
        lease.release()

    return {
        "facts": lambda: JobFacts.load(run),
        "summary": lambda: write_summary(run),
        "export": lambda: export_run(run, "lmms_eval", run.parent / "exported"),
        "lease": take_lease,
    }


@cache
def _original(kind: str) -> Path:
    folder = Path(mkdtemp(prefix="fuzz-"))
    if kind == "run":
        _write_run(folder)
        return folder
    fill(folder, _CLIPS)
    if kind == "shards":
        (found,) = find_caches(str(folder))
        for _ in compact_cache(found):
            pass
        (shard,) = (folder / found.name).glob("*.parquet")
        keys = [key_of(number) for number in _CLIPS]
        storage = Storage.at(folder / found.name)
        write_index(storage, {shard.name: keys}, found.name.rpartition("-")[2])
    return folder


@cache
def _tokens() -> tuple[tuple[dict[str, Any], str], dict[str, Any]]:
    """Identity and label of the cache, and what its clips hold."""
    cache_ = fill(Path(mkdtemp(prefix="fuzz-")), _CLIPS)
    right = {key_of(number): cache_.read(key_of(number)).video for number in _CLIPS}
    return (cache_.settings, cache_.name.rpartition("-")[0]), right


def _write_run(folder: Path) -> None:
    """A finished run with its recipe, its answers, and the lease of a driver that has died."""
    root, replies = original_release(0), replies_of_release(0, "vlmevalkit")
    section = BenchmarkSection("videomme", str(root))
    about = ImportSettings(section, "tiny", "full", num_frames=4)
    run, _ = import_answers(replies, "vlmevalkit", about, folder)
    storage = Storage.at(run / "answers")
    table = read_sealed(storage, "part-00000.parquet", must=True).table
    storage.delete("part-00000.parquet")
    write_sealed(table, storage, "part-00000-0123456789ab.parquet", run.name)
    recipe = {
        "benchmark": {"name": "videomme", "root": str(root)},
        "model": {"name": "tiny", "num_frames": 4},
        "method": {"name": "full"},
    }
    (run / "job.yaml").write_text(parse_job(recipe, "recipe").to_yaml())
    Lease(Storage.at(run)).take()
    for path in run.glob("*lease*"):
        holder = json.loads(path.read_text())
        path.write_text(json.dumps({**holder, "pid": 2**22 + 1}))


@cache
def _answers() -> pd.DataFrame:
    (run,) = (p for p in _original("run").iterdir() if p.is_dir())
    return read_answers(run)
