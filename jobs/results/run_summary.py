"""The summaries of one run and of several runs, and their form in `summary.json`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar

from jobs.results.cell_summary import CellSummary
from jobs.results.facts import SkippedMethod, WorkCounts
from jobs.results.quantities import (
    CacheCounts,
    Json,
    Latencies,
    QuestionCounts,
    Throughput,
    fields_to_plain,
    from_plain,
    measured_from_json,
    with_counts,
)
from jobs.results.replies import FailureList


@dataclass(frozen=True, kw_only=True)
class RunSummary:
    """The numbers of one run: its totals and its cells.

    Attributes:
        run_id: Name of the run directory.
        kind: The command that made it.
        model: Entry of `MODELS`.
        mode: `"throughput"` or `"profile"`.
        note: A sentence shown with every result.
        skipped: Methods that the model cannot run. JSON key `left_out`.
        counts: Questions by outcome, over all cells.
        latency_ms: Latency per stage, over all cells.
        cache: Cache hits and misses, over all cells.
        throughput: Rates over the wall-clock time of the run.
        work: What the run did, as its facts say; `None` if they do not.
        peak_gib: Largest memory in GiB.
        peak_of: Whose memory: `"device"` or `"process"`.
        failures: Why answers failed.
        cells: One summary per cell, in the order of the recipe.
    """

    JSON_KEYS: ClassVar[Mapping[str, str]] = {"skipped": "left_out"}

    # In the order of the keys of `summary.json`.
    run_id: str
    kind: str = ""
    model: str
    mode: str = "throughput"
    note: str = ""
    skipped: tuple[SkippedMethod, ...] = ()
    counts: QuestionCounts = field(default_factory=QuestionCounts)
    latency_ms: Latencies = field(default_factory=dict)
    cache: CacheCounts = field(default_factory=CacheCounts)
    throughput: Throughput = field(default_factory=Throughput)
    work: WorkCounts | None = None
    peak_gib: float | None = None
    peak_of: str | None = None
    failures: FailureList = field(default_factory=FailureList)
    cells: tuple[CellSummary, ...]

    def to_json(self) -> Json:
        """Plain data for `summary.json`.

        The top level also holds the fields of the cell that the run is about, if there is one.
        """
        run = with_counts(fields_to_plain(self))
        cells = run.pop("cells")
        cell = main_cell(self.cells, self.kind)
        if len(self.cells) == 1 and cell is not None:
            run = {**cell.to_json(), **run}
        elif cell is not None:
            run = {**run, **cell.to_json(), "throughput": run["throughput"]}
        return {**run, "cells": cells}

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> RunSummary:
        """Read the `summary.json` of a run.

        Raises:
            KeyError: If a key that every version wrote is missing.
        """
        run_id, model = data["run_id"], data["model"]
        return from_plain(
            cls,
            data,
            **measured_from_json(data),
            cells=tuple(
                CellSummary.from_json(cell, run_id=run_id, model=model) for cell in data["cells"]
            ),
            skipped=tuple(from_plain(SkippedMethod, own) for own in data.get("left_out") or ()),
            failures=FailureList.from_json(data.get("failures") or {}),
            work=from_plain(WorkCounts, data["work"]) if data.get("work") else None,
        )


@dataclass(frozen=True, kw_only=True)
class RunsSummary:
    """The numbers of several runs side by side.

    Attributes:
        run_id: Title, e.g. `"comparison of 2 runs"`.
        kind: `"comparison"`.
        runs: Names of the run directories.
        note: The notes of all runs.
        skipped: Methods that a model cannot run.
        counts: Sums over the runs.
        cache: Sums over the runs.
        cells: The cells of all runs.
        throughput: Unknown: the runs need not have been made on one machine.
        latency_ms: Unknown, for the same reason.
        peak_gib: Unknown, for the same reason.
        peak_of: Unknown.
        failures: Why answers failed, over all runs.
    """

    JSON_KEYS: ClassVar[Mapping[str, str]] = {"skipped": "left_out"}
    peak_gib: ClassVar[None] = None
    peak_of: ClassVar[None] = None

    # In the order of the keys of `summary.json`.
    run_id: str
    kind: str
    runs: tuple[str, ...]
    note: str
    skipped: tuple[SkippedMethod, ...]
    counts: QuestionCounts
    cache: CacheCounts
    throughput: Throughput = field(default_factory=Throughput)
    latency_ms: Latencies = field(default_factory=dict)
    failures: FailureList = field(default_factory=FailureList)
    cells: tuple[CellSummary, ...]

    def to_json(self) -> Json:
        """Plain data for `summary.json`."""
        cells = [cell.to_json_with_run() for cell in self.cells]
        return {**with_counts(fields_to_plain(self)), "cells": cells}


def main_cell(cells: Sequence[CellSummary], kind: str) -> CellSummary | None:
    """The cell that a run is about; `None` for a sweep.

    A profile that `tango evaluate` made measures all tokens beside the method; it is about the
    method.
    """
    if len(cells) == 1:
        return cells[0]
    if kind != "evaluate":
        return None
    (cell,) = (cell for cell in cells if not cell.is_baseline)
    return cell
