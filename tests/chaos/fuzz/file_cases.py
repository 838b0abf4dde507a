"""Damaged files of the program itself: token caches, shards, their index, and parts of answers."""

from __future__ import annotations

import random
import shutil
from dataclasses import replace
from functools import cache
from pathlib import Path
from tempfile import mkdtemp
from typing import Any

import torch

from pipeline.cache.directory import Shards, TokenCache, read_index
from pipeline.cache.folders import check_entries, compact_cache, find_caches
from pipeline.progress.answers import AnswerWriter
from pipeline.progress.parts import AnswerParts
from pipeline.rows import AnswerRow
from tango_core.errors import UserError
from tests.chaos.fuzz.damage import Outcome, apply, draw
from tests.fixtures.filled_caches import fill, key_of

_CLIPS = (1, 2, 3)


def run_file_case(seed: int, folder: Path) -> Outcome:
    """Damage one file, then read all that it belongs to; an error other than `UserError` is raised.

    Args:
        seed: Seed of the case.
        folder: Directory to work in.
    """
    dice = random.Random(f"files {seed}")
    kind = dice.choice(("cache", "shards", "run"))
    root = folder / kind
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
    for folder in find_caches(str(root)):
        good = sum(problem is None for _, problem in check_entries(folder))
        if folder.cache is not None and good > len(original) - bad:
            return f"{bad} clips cannot be read, and a check of the cache finds {good} good ones"
    return ""


_TENSORS = ("tokens", "indices", "timestamps")


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
