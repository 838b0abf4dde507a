"""The summary of a run, or of several runs side by side, and its form in `summary.json`."""

from __future__ import annotations

import json
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
    with_counts,
)
from jobs.results.replies import FailureList
from tango_core.errors import InputError


@dataclass(frozen=True, kw_only=True)
class RunSummary:
    """The numbers of one run, or of several side by side: totals and cells.

    Attributes:
        run_id: Name of the run directory, or a title such as `"comparison of 2 runs"`.
        kind: The command that made it; `"comparison"` for several runs.
        runs: Names of the runs that are compared; empty for one run.
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
    runs: tuple[str, ...] = ()
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
        if self.runs:
            return {**run, "cells": [cell.to_json_with_run() for cell in self.cells]}
        cells, _ = run.pop("cells"), run.pop("runs")
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
            counts=from_plain(QuestionCounts, data),
            throughput=from_plain(Throughput, data.get("throughput") or {}),
            cells=tuple(
                CellSummary.from_json(cell, run_id=run_id, model=model) for cell in data["cells"]
            ),
        )


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


def parse_summary(content: bytes, run: object) -> RunSummary:
    """Parse the `summary.json` of a run.

    Args:
        content: Content of the file.
        run: Directory or URL of the run, for the message.

    Raises:
        InputError: If it is damaged.
    """
    try:
        return RunSummary.from_json(json.loads(content))
    except (ValueError, LookupError, TypeError, AttributeError) as error:
        raise InputError(
            f"{run}/summary.json is damaged ({type(error).__name__}: {error}); write it again "
            f"with `tango report {run}`"
        ) from error
