"""The answers of one cell as one table: a row per question, with its score and what was shown."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.compute as pc

from jobs.results.answer_columns import FAILED_BIT, RIGHT, SCORED, AnswerColumns
from jobs.results.reduction import parts_of
from tango_core.benchmarks import facts_of
from tango_core.metrics import ACCURACY, Metric, Questions

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
COLUMNS = (*_TEXTS, *_DIGESTS, *_NUMBERS, "score", "failed")


def cell_answers(run_dir: Path, benchmark: str, cell: str) -> pd.DataFrame:
    """The answers of one cell of a run, in the order of its files; see `table_answers`.

    Raises:
        DamagedFileError: If a file is damaged.
        FileNotFoundError: If the run has no answers.
    """
    tables = [_of_cell(table, benchmark, cell) for table in parts_of(run_dir).whole_clips()]
    frames = [table_answers(table, metric_of(benchmark)) for table in tables if len(table)]
    return pd.concat(frames, ignore_index=True) if frames else pd.DataFrame(columns=list(COLUMNS))


def metric_of(benchmark: str) -> Metric:
    """What is explained: the headline, or right and wrong where that has no value per question."""
    headline = facts_of(benchmark).metrics[0]
    return headline if headline.unit == "question" else ACCURACY


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
    bits = columns.bits
    found: dict[str, object] = {}
    for name in (*_TEXTS, *_DIGESTS):
        codes, values = columns.texts(name)
        found[name] = np.array([*values, None], dtype=object)[codes]
    for name in _NUMBERS:
        found[name] = columns.numbers(name)
    scored, right = (bits & SCORED) > 0, (bits & RIGHT) > 0
    no_groups = np.zeros(len(columns), np.int64)
    questions = Questions(scored, right, columns.scores, columns.clips, [{}], no_groups)
    found["score"] = np.where(scored, metric.count(questions).values, np.nan)
    found["failed"] = (bits & FAILED_BIT) > 0
    return pd.DataFrame(found, columns=list(COLUMNS))


def _of_cell(table: pa.Table, benchmark: str, cell: str) -> pa.Table:
    """Rows of one cell."""
    return table.filter(
        pc.and_(pc.equal(table["benchmark"], benchmark), pc.equal(table["cell"], cell))
    )
