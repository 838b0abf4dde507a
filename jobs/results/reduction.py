"""Read all answers of a run part by part and reduce them to counts and sums."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.compute as pc

from jobs.results.answer_columns import AnswerColumns
from jobs.results.facts import resumed_as
from jobs.results.measurements import Measurements
from jobs.results.outcomes import Outcomes, question_keys
from pipeline.progress.parts import AnswerParts, Digests, is_in
from pipeline.storage.copies import home_of
from tango_core.errors import MissingFileError


class Reduction:
    """What is kept of answers: outcomes per question, and sums per cell.

    Args:
        mode: `"throughput"` or `"profile"`; decides what counts as a measurement.
        confusion: Group of the questions by which right and chosen options are counted; "" for
            none.

    Attributes:
        outcomes: Benchmark -> right and wrong.
        measurements: Everything else.
    """

    def __init__(self, mode: str, confusion: str = "") -> None:
        self.profile = mode == "profile"
        self.outcomes: dict[str, Outcomes] = {}
        self.measurements = Measurements(profile=self.profile, confusion=confusion)

    def add(self, table: pa.Table) -> None:
        """Take the answers about some clips, which come in no other table."""
        benchmarks = table["benchmark"].unique().to_pylist()
        for name in benchmarks:
            answers = AnswerColumns(table if len(benchmarks) == 1 else _of(table, name))
            if name not in self.outcomes:
                self.outcomes[name] = Outcomes(
                    name, profile=self.profile, measurements=self.measurements
                )
            self.outcomes[name].add(answers)


def reduce_table(answers: pd.DataFrame, mode: str, confusion: str = "") -> Reduction:
    """Reduce answers that are in memory."""
    reduction = Reduction(mode, confusion)
    reduction.add(pa.Table.from_pandas(answers, preserve_index=False))
    return reduction


def reduce_runs(
    folders: Sequence[Path],
    mode: str,
    *,
    only: Mapping[str, Digests] | None = None,
    confusion: str = "",
) -> Reduction:
    """Read and check the answers of a run, or of several runs that have no clip in common.

    Args:
        folders: Run directories.
        mode: `"throughput"` or `"profile"`.
        only: Benchmark -> sorted digests of the questions that count; benchmarks that are not
            named count as a whole.
        confusion: As `Reduction`.

    Raises:
        DamagedFileError: If a file is damaged.
        FileNotFoundError: If a run has no answers.
    """
    reduction = Reduction(mode, confusion)
    for folder in folders:
        for table in parts_of(folder).whole_clips():
            table = table if only is None else _chosen(table, only)
            if len(table):
                reduction.add(table)
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
            keys = question_keys(AnswerColumns(_of(table, benchmark)))
            found.setdefault(benchmark, []).append(keys)
    return {name: np.unique(np.concatenate(keys)) for name, keys in found.items()}


def _chosen(table: pa.Table, only: Mapping[str, Digests]) -> pa.Table:
    """The rows of a table whose question counts."""
    answers = AnswerColumns(table)
    keys, stays = question_keys(answers)[answers.questions[0]], np.ones(len(answers), dtype=bool)
    for benchmark, chosen in only.items():
        stays &= ~answers.equals("benchmark", benchmark) | is_in(keys, chosen)
    return answers.table.filter(pa.array(stays))


def _of(table: pa.Table, benchmark: str) -> pa.Table:
    return table.filter(pc.equal(table["benchmark"], benchmark))
