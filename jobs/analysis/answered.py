"""What a run answered, for analyses that explain it: scores, and right or wrong by question."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from statistics import fmean

import numpy as np
import pyarrow.compute as pc

from jobs.config.recipe import RecipeError
from jobs.results.answer_columns import AnswerColumns, metric_of, scores_of
from jobs.results.cell_summary import SCORE
from jobs.results.reduction import parts_of
from tango_core.metrics import ACCURACY

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


@dataclass(frozen=True)
class CellScores:
    """What a run scored on some clips.

    Attributes:
        title: What readers call the score; "score" where benchmarks have different ones.
        by_cell: Cell -> mean score of its questions, in [0, 1].
    """

    title: str = ACCURACY.title
    by_cell: Mapping[str, float] = field(default_factory=dict)


def cell_scores(run: Path, benchmarks: Mapping[str, Collection[str]]) -> CellScores:
    """The scores of a run on some clips; failed and unreadable answers have 0.

    Of each benchmark it is the headline, or the accuracy where that has no value per question.

    Args:
        run: Directory of a finished run.
        benchmarks: Benchmark -> video ids of the clips that count.

    Raises:
        RecipeError: If the run was asked nothing about these clips.
        FileNotFoundError: If it has no answers.
        DamagedFileError: If a file of it is damaged.
    """
    metrics = {name: metric_of(name) for name in benchmarks}
    found: dict[str, list[float]] = {}
    for table in parts_of(run).whole_clips():
        columns = AnswerColumns(table)
        wanted = np.array([video in benchmarks.get(name, ()) for name, video in columns.clip_names])
        for number, (benchmark, cell) in enumerate(columns.cell_names):
            if benchmark in metrics:
                own = (columns.cells == number) & wanted[columns.clips]
                values = scores_of(columns, metrics[benchmark])[own]
                found.setdefault(cell, []).extend(values[~np.isnan(values)].tolist())
    known = {cell: fmean(own) for cell, own in found.items() if own}
    if not known:
        raise RecipeError(
            f"{run} has no scored answers about these clips; give a run that asked about them"
        )
    titles = {metric.title for metric in metrics.values()}
    return CellScores(titles.pop() if len(titles) == 1 else SCORE, known)
