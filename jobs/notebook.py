"""Read finished runs in a notebook: typed summaries and pandas frames.

    from jobs.notebook import load_run

    run = load_run("runs/20260101-120000-shapes-...")
    run.cells[["cell", "accuracy", "tokens_kept"]]
    run.answers(["video_id", "question_id", "correct"], cells=["tango r=0.1"])

Data is read on first use. `answers` loads the requested answers into memory; `answers_in_parts`
iterates over them, for runs that are larger than memory.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import pandas as pd
import pyarrow as pa
import pyarrow.compute as pc

from jobs.results.answer_columns import completed
from jobs.results.cell_summary import CellSummary, RunSummary, parse_summary
from jobs.results.facts import JobFacts, recipe_of
from jobs.results.summary import SUMMARY_FILE, parts_of, reduce_runs, summarize_reduced
from pipeline.rows import ANSWER
from tango_core.errors import InputError

# pandas types that support missing values.
_TYPES = {
    pa.int64(): pd.Int64Dtype(),
    pa.bool_(): pd.BooleanDtype(),
    pa.string(): pd.StringDtype(),
    pa.float64(): pd.Float64Dtype(),
}
# Columns of `LoadedRun.cells` before and after the scores, which are keys of `summary.json`.
_SETTINGS = (
    *("benchmark", "cell", "method"),
    *("retention_requested", "retention_actual", "metric"),
)
_COUNTS = ("num_questions", "num_failed", "tokens_total", "tokens_kept", "prefill_tflops")


def load_run(path: str | Path) -> LoadedRun:
    """Open a finished run.

    Args:
        path: Run directory.

    Raises:
        FileNotFoundError: If the directory is not a finished run.
        ValueError: If the run's facts are damaged.
    """
    folder = Path(path).expanduser()
    return LoadedRun(folder, JobFacts.load(folder))


@dataclass(frozen=True)
class LoadedRun:
    """A finished run.

    Attributes:
        path: Run directory.
        facts: Recorded facts: model, cells, versions, times.
    """

    path: Path
    facts: JobFacts

    @cached_property
    def recipe(self) -> dict[str, Any]:
        """The resolved recipe; empty for imported runs."""
        return recipe_of(self.path)

    @cached_property
    def summary(self) -> RunSummary:
        """The run's summary from `summary.json`, or computed if that is missing.

        Raises:
            ValueError: If the file is damaged.
        """
        path = self.path / SUMMARY_FILE
        if not path.is_file():
            return summarize_reduced(reduce_runs([self.path], self.facts.mode), self.facts)
        return parse_summary(path.read_bytes(), self.path)

    @cached_property
    def cells(self) -> pd.DataFrame:
        """One row per cell: settings, accuracy, tokens and latencies.

        Columns `accuracy`, `accuracy_low` and `accuracy_high` are shares in [0, 1] with their 95 %
        interval, missing if a benchmark has none; `score`, `score_low` and `score_high` are the
        same for the headline metric, whose name is `metric`; `<stage>_ms` is the median of a stage
        in milliseconds.
        """
        return pd.DataFrame([_plain(cell) for cell in self.summary.cells]).convert_dtypes()

    def answers(
        self,
        columns: Collection[str] | None = None,
        *,
        cells: Collection[str] | None = None,
        benchmarks: Collection[str] | None = None,
        groups: bool = False,
    ) -> pd.DataFrame:
        """The answers, one row per question and cell.

        Args:
            columns: Names of columns of `pipeline.rows.ANSWER`; `None` for all.
            cells: Names of the cells; `None` for all.
            benchmarks: Names of the benchmarks; `None` for all.
            groups: Add a column `group.<name>` for every group of the questions.

        Raises:
            ValueError: If a column, cell or benchmark does not exist.
            FileNotFoundError: If the run has no answers.
            DamagedFileError: If a file of the run is damaged.
        """
        chosen = list(ANSWER.names if columns is None else dict.fromkeys(columns))
        parts = [*self.answers_in_parts(chosen, cells=cells, benchmarks=benchmarks, groups=groups)]
        return pd.concat([_frame(ANSWER.empty_table(), chosen), *parts], ignore_index=True)

    def answers_in_parts(
        self,
        columns: Collection[str] | None = None,
        *,
        cells: Collection[str] | None = None,
        benchmarks: Collection[str] | None = None,
        groups: bool = False,
        rows: int = 100_000,
    ) -> Iterator[pd.DataFrame]:
        """Like `answers`, in data frames of bounded size; answers about a clip stay together.

        Args:
            columns: As `answers`.
            cells: As `answers`.
            benchmarks: As `answers`.
            groups: As `answers`.
            rows: Approximate number of rows per frame; a frame may exceed it by one file of the
                run.

        Raises:
            ValueError: If there is no such column, cell or benchmark.
        """
        chosen = list(ANSWER.names if columns is None else dict.fromkeys(columns))
        known = {
            "column": (chosen, set(ANSWER.names)),
            "cell": (cells, {cell.name for cell in self.facts.cells}),
            "benchmark": (benchmarks, {cell.benchmark for cell in self.facts.cells}),
        }
        for kind, (wanted, names) in known.items():
            if unknown := [name for name in wanted or () if name not in names]:
                listed = ", ".join(sorted(names))
                raise InputError(f"the run has no {kind} {unknown[0]!r}; choose from: {listed}")
        for part in parts_of(self.path).whole_clips(rows=rows):
            table = completed(part)
            for name, wanted in (("cell", cells), ("benchmark", benchmarks)):
                if wanted is not None:
                    values = pa.array(list(wanted), pa.string())
                    table = table.filter(pc.is_in(table[name], value_set=values))
            if not len(table):
                continue
            frame = _frame(table, chosen)
            if groups:
                parsed = [json.loads(text or "{}") for text in table["groups"].to_pylist()]
                own = pd.DataFrame(parsed, dtype=pd.StringDtype()).sort_index(axis="columns")
                frame = frame.join(own.add_prefix("group."))
            yield frame


def _frame(table: pa.Table, columns: Sequence[str]) -> pd.DataFrame:
    """Columns of answers in types that preserve missing values."""
    schema = pa.schema([ANSWER.field(name) for name in columns])
    typed = table.select(columns).cast(schema, safe=False)
    frame: pd.DataFrame = typed.to_pandas(types_mapper=_TYPES.get)
    return frame


def _plain(cell: CellSummary) -> dict[str, Any]:
    """A cell as a dictionary of plain values."""
    data = cell.to_json()
    row = {name.removesuffix("_requested"): data[name] for name in _SETTINGS}
    for name, estimate in (("accuracy", cell.accuracy), ("score", cell.headline)):
        for end, part in (("", "value"), ("_low", "low"), ("_high", "high")):
            row[f"{name}{end}"] = getattr(estimate, part, None)
    row |= {name: data[name] for name in _COUNTS}
    return row | {f"{stage}_ms": stats.p50 for stage, stats in cell.latency_ms.items()}
