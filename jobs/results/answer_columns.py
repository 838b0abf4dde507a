"""The columns of a table of answers as arrays, with statuses converted to outcome bits."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from functools import cached_property
from itertools import pairwise
from typing import Any

import numpy as np
import numpy.typing as npt
import pandas as pd
import pyarrow as pa
import pyarrow.compute as pc

from pipeline.clips import DAMAGED, FAILED
from pipeline.progress.parts import Codes, clips_of, encoded, last_of_each
from tango_core.benchmarks import facts_of
from tango_core.metrics import ACCURACY, Metric, Questions

Mask = npt.NDArray[np.bool_]
Values = npt.NDArray[np.float64]

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
        self.table = last_of_each(table)
        self.clips, self.clip_names = clips_of(self.table)
        codes, names = encoded(self.table["cell"])
        benchmarks = {name: at for at, name in enumerate(dict.fromkeys(self._benchmarks))}
        of_clip = np.array([benchmarks[name] for name in self._benchmarks], np.int64)
        both = of_clip[self.clips] * max(1, len(names)) + codes
        found, self.cells = np.unique(both, return_inverse=True)
        listed = list(benchmarks)
        self.cell_names = [
            (listed[one // len(names)], names[one % len(names)]) for one in found.tolist()
        ]

    def __len__(self) -> int:
        """Number of answers."""
        return len(self.table)

    @property
    def _benchmarks(self) -> list[str]:
        """Benchmark of every clip."""
        return [benchmark for benchmark, _ in self.clip_names]

    def has(self, name: str) -> bool:
        """Whether a column is there and not empty."""
        return name in self.table.column_names and self.table[name].null_count < len(self)

    def numbers(self, name: str) -> Values:
        """(n,) a column as float64, NaN where there is no number."""
        if not self.has(name):
            return np.full(len(self), np.nan)
        column = self.table[name]
        kind = column.type
        if pa.types.is_integer(kind) or pa.types.is_floating(kind) or pa.types.is_boolean(kind):
            return np.asarray(column.cast(pa.float64()).to_numpy())
        values = pd.to_numeric(column.to_pandas(), errors="coerce")
        return np.asarray(values.astype("float64"))

    def texts(self, name: str) -> tuple[Codes, list[Any]]:
        """(n,) a column as numbers, -1 for no value; the values by number."""
        if name not in self.table.column_names:
            return np.full(len(self), -1), []
        column = self.table[name]
        kind = column.type
        if (
            pa.types.is_string(kind)
            or pa.types.is_large_string(kind)
            or pa.types.is_dictionary(kind)
        ):
            return encoded(column)
        if pa.types.is_null(kind):
            return np.full(len(self), -1), []
        return np.arange(len(self)), column.to_pylist()  # nested, by a foreign writer

    def equals(self, name: str, value: str) -> Mask:
        """(n,) whether a column of texts has a value."""
        codes, values = self.texts(name)
        return np.array([*(one == value for one in values), False])[codes]

    def known(self, name: str) -> Mask:
        """(n,) whether a column has a value."""
        if name not in self.table.column_names:
            return np.zeros(len(self), dtype=bool)
        values = self.table[name]
        known = pc.is_valid(values)
        if pa.types.is_floating(values.type):
            known = pc.and_(known, pc.invert(pc.fill_null(pc.is_nan(values), True)))
        return np.asarray(known.to_numpy(), dtype=bool)

    @cached_property
    def bits(self) -> npt.NDArray[np.uint8]:
        """(n,) outcome of every answer: a sum of the constants above."""
        codes, names = self.texts("status")
        status = {name: codes == code for code, name in enumerate(names)}
        nothing = np.zeros(len(self), dtype=bool)
        ok, unparsed = status.get("ok", nothing), status.get("unparsed", nothing)
        failed = np.any([nothing, *(mask for name, mask in status.items() if name in FAILED)], 0)
        damaged = status.get(DAMAGED, nothing) & self.known("prompt_tokens")
        if damaged.any():
            read = self.known("choice") | ~self.known("answer")
            ok, unparsed = ok | (damaged & read), unparsed | (damaged & ~read)
            failed = failed & ~damaged
        right = self.numbers("correct") == 1
        outcome = np.full(len(self), PRESENT, np.uint8)
        for bit, mask in (
            (SCORED, self.known("answer") | self.known("correct")),
            (RIGHT, right & ok),
            (OK, ok),
            (UNPARSED, unparsed),
            (FAILED_BIT, failed),
            (DAMAGED_BIT, damaged),
        ):
            outcome |= np.where(mask, bit, 0).astype(np.uint8)
        return outcome

    @cached_property
    def scores(self) -> Values:
        """(n,) score of every answer in [0, 1]: the one it states, else 1 for right; else 0."""
        right = (self.bits & RIGHT) > 0
        stated = np.clip(self.numbers("score"), 0.0, 1.0)
        scores = np.where(np.isnan(stated), right.astype(np.float64), stated)
        return np.where((self.bits & OK) > 0, scores, 0.0)

    @cached_property
    def questions(self) -> tuple[Codes, Codes, list[str]]:
        """The questions: (n,) number of every row's, (q,) first row of each, and their ids."""
        codes, ids = encoded(self.table["question_id"])
        both = self.clips * (len(ids) + 1) + codes
        _, first, numbers = np.unique(both, return_index=True, return_inverse=True)
        return numbers.astype(np.int64), first, [ids[code] for code in codes[first].tolist()]


def read_groups(value: object) -> dict[str, str]:
    """One value of the column `groups`, as Parquet readers give it: JSON, a mapping, or pairs."""
    if isinstance(value, str):
        return {str(key): str(item) for key, item in json.loads(value).items()} if value else {}
    if isinstance(value, Mapping):
        return {str(key): str(item) for key, item in value.items() if item is not None}
    if isinstance(value, (list, tuple, np.ndarray)):
        return {str(key): str(item) for key, item in value}
    return {}


def by_code(codes: Codes, rows: Codes) -> Iterator[tuple[int, Codes]]:
    """Split rows by their code; rows of a code stay in their order."""
    order = rows[np.argsort(codes[rows], kind="stable")]
    ordered = codes[order]
    ends = np.flatnonzero(np.append(ordered[1:] != ordered[:-1], len(order) > 0)) + 1
    for start, end in pairwise([0, *ends.tolist()]):
        yield int(ordered[start]), order[start:end]


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
