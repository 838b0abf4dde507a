"""All answers of a run, read once and part by part, reduced to what every number is made from."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Protocol

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.compute as pc

from jobs.results.answer_columns import FAILED_BIT, AnswerColumns
from jobs.results.facts import resumed_as
from jobs.results.outcomes import Outcomes, question_keys
from jobs.results.replies import FailureReasons, ReadingCounts
from jobs.results.totals import CellTotals, Distribution, TotalsOfTable
from pipeline.progress.parts import AnswerParts, Digests, digests_of, is_in, question_digest
from pipeline.storage.copies import home_of
from tango_core.errors import MissingFileError


class TableReader(Protocol):
    """Something else that wants to see the answers while they are read."""

    def add(self, columns: AnswerColumns) -> None:
        """Take some answers."""


class Reduction:
    """What is kept of answers: outcomes per question, and sums.

    Args:
        mode: `"throughput"` or `"profile"`; decides what counts as a measurement.

    Attributes:
        outcomes: Benchmark -> right and wrong.
        totals: (benchmark, cell) -> sums.
        shared: Stages that one pass serves for all cells, with their measurements.
        failures: Why answers failed.
        readings: How replies were read.
    """

    def __init__(self, mode: str) -> None:
        self.profile = mode == "profile"
        self.outcomes: dict[str, Outcomes] = {}
        self.totals: dict[tuple[str, str], CellTotals] = {}
        self.shared: dict[str, Distribution] = {}
        self.failures = FailureReasons()
        self.readings = ReadingCounts()

    def add(self, table: pa.Table) -> AnswerColumns:
        """Take the answers about some clips, which come in no other table."""
        columns = AnswerColumns(table)
        totals = [self.totals.setdefault(name, CellTotals()) for name in columns.cell_names]
        TotalsOfTable(columns, totals, self.shared, profile=self.profile).add()
        self.failures.add(columns)
        self.readings.add(columns)
        benchmarks = dict.fromkeys(benchmark for benchmark, _ in columns.cell_names)
        for name in benchmarks:
            own = columns if len(benchmarks) == 1 else AnswerColumns(_of(columns.table, name))
            if name not in self.outcomes:
                self.outcomes[name] = Outcomes(name, profile=self.profile)
            self.outcomes[name].add(own)
        return columns

    @property
    def counted_clips(self) -> Counter[str]:
        """Clips in all and failed ones, over all benchmarks and cells."""
        counts: Counter[str] = Counter()
        for outcomes in self.outcomes.values():
            failed = np.zeros(outcomes.num_questions, dtype=bool)
            for cell in outcomes.cells:
                failed |= (outcomes.bits(cell) & FAILED_BIT) > 0
            counts["all"] += outcomes.num_clips
            counts["failed"] += len(np.unique(outcomes.clip[failed]))
        return counts


def reduce_table(answers: pd.DataFrame | pa.Table, mode: str) -> Reduction:
    """Reduce answers that are in memory."""
    reduction = Reduction(mode)
    table = answers if isinstance(answers, pa.Table) else _table_of(answers)
    reduction.add(table)
    return reduction


def reduce_runs(
    folders: Sequence[Path],
    mode: str,
    *,
    only: Mapping[str, Digests] | None = None,
    readers: Sequence[TableReader] = (),
) -> Reduction:
    """Read and check the answers of a run, or of several runs that have no clip in common.

    Args:
        folders: Run directories.
        mode: `"throughput"` or `"profile"`.
        only: Benchmark -> sorted digests of the questions that count; benchmarks that are not
            named count as a whole.
        readers: See the same answers.

    Raises:
        DamagedFileError: If a file is damaged.
        FileNotFoundError: If a run has no answers.
    """
    reduction = Reduction(mode)
    for folder in folders:
        for table in parts_of(folder).whole_clips():
            table = table if only is None else _chosen(table, only)
            if len(table):
                columns = reduction.add(table)
                for reader in readers:
                    reader.add(columns)
    return reduction


def parts_of(run_dir: Path) -> AnswerParts:
    """The answers of a run.

    Raises:
        FileNotFoundError: If there are none.
    """
    parts = AnswerParts(run_dir / "answers")
    if not parts.overview.names:
        raise MissingFileError(
            f"{home_of(run_dir)} holds no answers/*.parquet; "
            f"continue the run with --resume {resumed_as(run_dir)}"
        )
    return parts


def questions_asked(run_dir: Path) -> dict[str, Digests]:
    """Benchmark -> sorted digests of the questions of a run, from the names of its answers."""
    found: dict[str, list[Digests]] = {}
    for table in parts_of(run_dir).names():
        for benchmark in table["benchmark"].unique().to_pylist():
            keys = _question_keys(AnswerColumns(_of(table, benchmark)))
            found.setdefault(benchmark, []).append(keys)
    return {name: np.unique(np.concatenate(keys)) for name, keys in found.items()}


def _chosen(table: pa.Table, only: Mapping[str, Digests]) -> pa.Table:
    """The rows of a table whose question counts."""
    columns = AnswerColumns(table)
    keys, table = _question_keys(columns)[columns.questions[0]], columns.table
    stays = np.ones(len(table), dtype=bool)
    for benchmark, chosen in only.items():
        stays &= ~columns.equals("benchmark", benchmark) | is_in(keys, chosen)
    return table.filter(pa.array(stays))


def _question_keys(columns: AnswerColumns) -> Digests:
    """(q,) digest of every question."""
    _, first, ids = columns.questions
    digests = np.array([question_digest(one) for one in ids], np.uint64)
    return question_keys(digests_of(columns.clip_names)[columns.clips[first]], digests)


def _of(table: pa.Table, benchmark: str) -> pa.Table:
    """Rows of one benchmark."""
    return table.filter(pc.equal(table["benchmark"], benchmark))


def _table_of(answers: pd.DataFrame) -> pa.Table:
    """A frame as a table."""
    return pa.Table.from_pandas(answers, preserve_index=False)
