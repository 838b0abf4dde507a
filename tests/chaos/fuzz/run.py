"""`make fuzz SEED= N=`: many damaged files, one after the other, counted by how they ended.

Videos are judged by `video_cases`. The other files are the program's own: token caches, shards,
their index, and parts of answers.
"""

from __future__ import annotations

import argparse
import random
import shutil
import sys
import traceback
from collections import Counter
from collections.abc import Iterator
from dataclasses import replace
from functools import cache
from pathlib import Path
from tempfile import mkdtemp
from typing import Any

import torch

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "fixtures"))

from pipeline.cache.directory import Shards, TokenCache, read_index
from pipeline.cache.folders import check_entries, compact_cache, find_caches
from pipeline.progress.answers import AnswerWriter
from pipeline.progress.parts import AnswerParts
from pipeline.rows import AnswerRow
from pipeline.runtime.child import Child, CrashError
from tango_core.errors import UserError
from tests.chaos.fuzz.damage import Outcome, apply, draw
from tests.chaos.fuzz.video_cases import folder, judged, video_case
from tests.fixtures.filled_caches import fill, key_of

KINDS = ("videos", "files")

# Address space with torch and pyarrow loaded, and what a damaged file may cost.
_MEMORY_GIB = 10.0
_LIMIT_S = 120.0
_CLIPS = (1, 2, 3)
_TENSORS = ("tokens", "indices", "timestamps")


def cases(seed: int, number: int, kinds: tuple[str, ...] = KINDS) -> Iterator[tuple[str, int]]:
    """Kind and seed of so many cases."""
    return ((kinds[at % len(kinds)], at) for at in range(seed, seed + number))


def run_case(kind: str, seed: int) -> Outcome:
    """Run one case; a process of its own reads files other than videos."""
    if kind == "videos":
        return judged(video_case(seed))
    try:
        return _child().call(
            run_in_child, seed, timeout_s=_LIMIT_S, about=f"{kind} {seed}", what="reader"
        )
    except (TimeoutError, CrashError, MemoryError) as error:
        return Outcome(kind, "", type(error).__name__, str(error))


def run_in_child(seed: int) -> Outcome:
    """Run one case about files that are read in Python."""
    try:
        return run_file_case(seed, folder())
    except Exception:
        return Outcome("files", "", "traceback", traceback.format_exc()[-1500:])


def run_file_case(seed: int, place: Path) -> Outcome:
    """Damage one file, then read all that it belongs to; an error other than `UserError` is raised.

    Args:
        seed: Seed of the case.
        place: Directory to work in.
    """
    dice = random.Random(f"files {seed}")
    kind = dice.choice(("cache", "shards", "run"))
    root = place / kind
    shutil.rmtree(root, ignore_errors=True)
    shutil.copytree(_original(kind), root)
    files = sorted(path for path in root.rglob("*") if path.is_file())
    path = dice.choice(files)
    done = _damage(path, files, dice)
    problem = (_read_run if kind == "run" else _read_cache)(root)
    return Outcome("files", f"{kind}: {path.suffix}", "read or refused", problem, done)


def _damage(path: Path, files: list[Path], dice: random.Random) -> tuple[object, ...]:
    """Remove a file, put another one in its place, or change its bytes; returns what was done."""
    how = dice.random()
    if how < 0.08:
        path.unlink()
        return ("lost",)
    if how < 0.16:
        other = dice.choice([one for one in files if one != path] or [path])
        path.write_bytes(other.read_bytes())
        return (f"replaced by {other.name}",)
    changes = draw(path.read_bytes(), dice)
    path.write_bytes(apply(path.read_bytes(), changes))
    return changes


def _read_cache(root: Path) -> str:
    """Every token set that is read is the one that was written; the checks refuse the others."""
    identity, label, original = _tokens()
    found = TokenCache(str(root), identity, label)
    bad = 0
    for key, right in original.items():
        try:
            video = found.read(key).video
        except (UserError, FileNotFoundError):
            bad += 1
            continue
        same = [torch.equal(getattr(video, n), getattr(right, n)) for n in _TENSORS]
        if not all(same) or video.grid != right.grid:
            return f"clip {key} is read with other tokens than were written"
    found.keys()
    read_index(found.storage)
    for one in find_caches(str(root)):
        good = sum(problem is None for _, problem in check_entries(one))
        if one.cache is not None and good > len(original) - bad:
            return f"{bad} clips cannot be read, and a check of the cache finds {good} good ones"
    return ""


def _read_run(root: Path) -> str:
    """The answers are those that were written, or are refused, and are set aside when resumed."""
    folder = root / "run" / "answers"
    for set_aside in (False, True):
        try:
            tables = list(AnswerParts(folder, set_aside=set_aside).whole_clips())
        except UserError:
            continue
        rows = [row for table in tables for row in table.to_pylist()]
        if rows not in ([], [vars(answer) for answer in _answers()]):
            return "answers are read that were not written"
    return ""


@cache
def _original(kind: str) -> Path:
    folder = Path(mkdtemp(prefix="fuzz-"))
    if kind == "run":
        writer = AnswerWriter(folder / "run" / "answers")
        writer.add(_answers())
        writer.flush()
        return folder
    cache = fill(folder, _CLIPS)
    if kind == "shards":
        (found,) = find_caches(str(folder))
        list(compact_cache(found))
        shards = Shards(cache.storage)
        shards.refresh()
        shards.write_index()
    return folder


@cache
def _answers() -> list[AnswerRow]:
    first = AnswerRow(benchmark="b", video_id="v0", cell="full", text="A", score=0.5, groups="{}")
    return [
        replace(first, video_id=f"v{number // 3}", question_id=f"q{number}", choice=number % 4)
        for number in range(30)
    ]


@cache
def _tokens() -> tuple[dict[str, Any], str, dict[str, Any]]:
    """Identity and label of the cache, and what its clips hold."""
    found = fill(Path(mkdtemp(prefix="fuzz-")), _CLIPS)
    right = {key_of(number): found.read(key_of(number)).video for number in _CLIPS}
    return found.settings, found.name.rpartition("-")[0], right


@cache
def _child() -> Child:
    return Child(memory_gib=_MEMORY_GIB)


def main() -> int:
    """Run many cases and print their counts."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--number", type=int, default=5_000)
    parser.add_argument("--kind", choices=KINDS, help="only these files")
    options = parser.parse_args()
    ends: Counter[tuple[str, str]] = Counter()
    problems = 0
    for kind, seed in cases(
        options.seed, options.number, (options.kind,) if options.kind else KINDS
    ):
        outcome = run_case(kind, seed)
        ends[kind, outcome.what] += 1
        if outcome.problem:
            problems += 1
            text = f"{kind} {seed}: {outcome.about}: {outcome.problem} {outcome.mutations}"
            print(text[:1500], flush=True)
    for (kind, what), count in ends.most_common():
        print(f"  {count:6d}  {kind}: {what}")
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main())
