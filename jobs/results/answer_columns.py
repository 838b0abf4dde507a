"""The columns of a table of answers as arrays, with statuses converted to outcome bits."""

from __future__ import annotations

import json
from functools import cached_property

import numpy as np
import numpy.typing as npt
import pandas as pd
import pyarrow as pa

from pipeline.clips import DAMAGED, FAILED
from pipeline.progress.parts import Codes, clips_of, encoded, last_of_each
from pipeline.rows import ANSWER
from tango_core.benchmarks import facts_of
from tango_core.metrics import ACCURACY, Metric, Questions

Mask = npt.NDArray[np.bool_]
Values = npt.NDArray[np.float64]
# 64-bit digests of questions, equal in all runs.
Keys = npt.NDArray[np.uint64]

# Bits of one answer.
PRESENT, SCORED, RIGHT, OK, UNPARSED, FAILED_BIT, DAMAGED_BIT = (1 << bit for bit in range(7))


class AnswerColumns:
    """Answers about whole clips, column by column.

    Answers about a damaged clip that was kept (`pipeline.clips.DAMAGED`) count as any
    other: they get the status that they would have about a healthy clip, and `DAMAGED_BIT`.

    Args:
        table: Rows of `answers/*.parquet`, those of a clip in the order of its questions. Columns
            that runs of earlier versions do not have count as empty.

    Attributes:
        clips: (n,) number of every row's clip.
        clip_names: Benchmark and video id of every clip.
        cells: (n,) number of every row's cell.
        cell_names: Benchmark and name of every cell.
    """

    def __init__(self, table: pa.Table) -> None:
        self.table = completed(table)
        self.clips, self.clip_names = clips_of(self.table)
        self.cells, self.cell_names = clips_of(self.table, "cell")

    def __len__(self) -> int:
        """Number of answers."""
        return len(self.table)

    def numbers(self, name: str) -> Values:
        """(n,) a column as float64, NaN where there is no number."""
        return np.asarray(self.table[name].cast(pa.float64()).to_numpy())

    def texts(self, name: str) -> tuple[Codes, list[str]]:
        """(n,) a column as numbers, -1 for no value; the values by number."""
        return encoded(self.table[name])

    def known(self, name: str) -> Mask:
        """(n,) whether a column has a value."""
        return np.asarray(self.table[name].to_pandas().notna())

    @cached_property
    def bits(self) -> npt.NDArray[np.uint8]:
        """(n,) outcome of every answer: a sum of the constants above."""
        status = self.table["status"].to_pandas()
        damaged = status.eq(DAMAGED).to_numpy() & self.known("prompt_tokens")
        read = self.known("choice") | ~self.known("answer")
        ok = status.eq("ok").to_numpy() | (damaged & read)
        masks = {
            PRESENT: np.ones(len(self), dtype=bool),
            SCORED: self.known("answer") | self.known("correct"),
            RIGHT: ok & (self.numbers("correct") == 1),
            OK: ok,
            UNPARSED: status.eq("unparsed").to_numpy() | (damaged & ~read),
            FAILED_BIT: status.isin(FAILED).to_numpy() & ~damaged,
            DAMAGED_BIT: damaged,
        }
        bits = [bit * mask for bit, mask in masks.items()]
        return np.asarray(np.sum(bits, axis=0), np.uint8)

    @cached_property
    def scores(self) -> Values:
        """(n,) score of every answer in [0, 1]: the one it states, else 1 for right; else 0."""
        right = (self.bits & RIGHT) > 0
        stated = np.clip(self.numbers("score"), 0.0, 1.0)
        scores = np.where(np.isnan(stated), right.astype(np.float64), stated)
        return np.where((self.bits & OK) > 0, scores, 0.0)


def completed(table: pa.Table) -> pa.Table:
    """The last answer to every question, with all columns: null where an older run lacks one."""
    table = last_of_each(table)
    for field in ANSWER:
        if field.name not in table.column_names:
            table = table.append_column(field, pa.nulls(len(table), field.type))
    return table


def question_keys(table: pa.Table) -> Keys:
    """(n,) digest of every row's question."""
    names = table.select(["benchmark", "video_id", "question_id"]).to_pandas()
    return np.asarray(pd.util.hash_pandas_object(names.astype(str), index=False), np.uint64)


def read_groups(value: str | None) -> dict[str, str]:
    """One value of the column `groups`, which is JSON or empty."""
    return {str(key): str(item) for key, item in json.loads(value or "{}").items()}


def metric_of(benchmark: str) -> Metric:
    """The headline metric, or accuracy if the headline metric has no value per question."""
    headline = facts_of(benchmark).metrics[0]
    return headline if headline.unit == "question" else ACCURACY


def scores_of(columns: AnswerColumns, metric: Metric) -> Values:
    """(n,) value of every answer in [0, 1]; NaN where nobody knows the right answer.

    Args:
        columns: Answers.
        metric: Has a value per question.
    """
    scored, right = (columns.bits & SCORED) > 0, (columns.bits & RIGHT) > 0
    no_groups = np.zeros(len(columns), np.int64)
    questions = Questions(scored, right, columns.scores, columns.clips, [{}], no_groups)
    return np.where(scored, metric.count(questions).values, np.nan)
