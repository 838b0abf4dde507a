"""The answers of a cell as one table: a row per question, with its score and what was shown."""

from __future__ import annotations

from collections.abc import Collection
from pathlib import Path

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.compute as pc

from jobs.results.answer_columns import FAILED_BIT, AnswerColumns, metric_of, scores_of
from jobs.results.reduction import parts_of
from tango_core.metrics import ACCURACY, Metric

KEY = ["video_id", "question_id"]

_TEXTS = ("video_id", "question_id", "error", "text", "answer_text", "choice_text")
_DIGESTS = ("prompt_digest", "frames_digest", "kept_digest")
_NUMBERS = (
    "choice",
    "answer",
    "harness_score",
    "tokens_total",
    "tokens_kept",
    "tokens_with_newlines",
    "prompt_tokens",
)
# Benchmark and name of a cell.
Name = tuple[str, str]
COLUMNS = (*_TEXTS, *_DIGESTS, *_NUMBERS, "score", "failed")


def cell_answers(run_dir: Path, cells: Collection[Name]) -> dict[Name, pd.DataFrame]:
    """The answers of some cells of a run, which is read once for all of them.

    Args:
        run_dir: The run.
        cells: (benchmark, name) of each.

    Returns:
        Cell -> its answers in the order of the run's files; see `table_answers`.

    Raises:
        DamagedFileError: If a file is damaged.
        FileNotFoundError: If the run has no answers.
    """
    parts: dict[Name, list[pd.DataFrame]] = {cell: [] for cell in cells}
    for table in parts_of(run_dir).whole_clips():
        for cell, frames in parts.items():
            rows = _of_cell(table, *cell)
            if len(rows):
                frames.append(table_answers(rows, metric_of(cell[0])))
    return {
        cell: pd.concat(frames, ignore_index=True) if frames else pd.DataFrame(columns=[*COLUMNS])
        for cell, frames in parts.items()
    }


def table_answers(table: pa.Table, metric: Metric = ACCURACY) -> pd.DataFrame:
    """Rows of `answers/*.parquet` of one cell, as far as an explanation needs them.

    Args:
        table: The rows.
        metric: Has a value per question.

    Returns:
        `COLUMNS`: texts and digests (`None` where a run recorded none), numbers (NaN likewise),
        `score` in [0, 1] (NaN where nobody knows the right answer) and whether the question
        `failed`, so that it was never answered and its score is 0.
    """
    columns = AnswerColumns(table)
    found: dict[str, object] = {}
    for name in (*_TEXTS, *_DIGESTS):
        codes, values = columns.texts(name)
        found[name] = np.array([*values, None], dtype=object)[codes]
    for name in _NUMBERS:
        found[name] = columns.numbers(name)
    found["score"] = scores_of(columns, metric)
    found["failed"] = (columns.bits & FAILED_BIT) > 0
    return pd.DataFrame(found, columns=list(COLUMNS))


def _of_cell(table: pa.Table, benchmark: str, cell: str) -> pa.Table:
    """Rows of one cell."""
    return table.filter(
        pc.and_(pc.equal(table["benchmark"], benchmark), pc.equal(table["cell"], cell))
    )
