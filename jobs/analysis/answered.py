"""What a run answered, for analyses that explain it: accuracies, and right or wrong by question."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from pathlib import Path
from statistics import fmean

import pyarrow.compute as pc

from jobs.config.recipe import RecipeError
from jobs.results.reduction import parts_of

Outcomes = dict[tuple[str, str], bool]
"""Video id and question id -> whether the answer is right; failed and unreadable ones are wrong."""


def outcomes(run: Path, benchmark: str) -> dict[str, Outcomes]:
    """Cell -> outcome of every scored question of a benchmark.

    Raises:
        FileNotFoundError: If the run has no answers.
        DamagedFileError: If a file of it is damaged.
    """
    found: dict[str, Outcomes] = {}
    for table in parts_of(run).whole_clips():
        scored = pc.and_(pc.equal(table["benchmark"], benchmark), pc.is_valid(table["answer"]))
        own = table.filter(scored)
        columns = (own[name].to_pylist() for name in ("cell", "video_id", "question_id", "correct"))
        for cell, video, question, correct in zip(*columns, strict=True):
            found.setdefault(cell, {})[video, question] = bool(correct)
    return found


def accuracies(run: Path, benchmarks: Mapping[str, Collection[str]]) -> dict[str, float]:
    """Cell -> accuracy in [0, 1] on some clips; failed and unreadable answers are wrong.

    Args:
        run: Directory of a finished run.
        benchmarks: Benchmark -> video ids of the clips that count.

    Raises:
        RecipeError: If the run was asked nothing about these clips.
        FileNotFoundError: If it has no answers.
        DamagedFileError: If a file of it is damaged.
    """
    found: dict[str, list[bool]] = {}
    for benchmark, videos in benchmarks.items():
        for cell, answers in outcomes(run, benchmark).items():
            own = [right for (video, _), right in answers.items() if video in videos]
            found.setdefault(cell, []).extend(own)
    known = {cell: fmean(own) for cell, own in found.items() if own}
    if not known:
        raise RecipeError(
            f"{run} has no scored answers about these clips; give a run that asked about them"
        )
    return known
