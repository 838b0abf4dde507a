"""The table of a profile: latency of every stage of every cell, and the speed-up to `full`."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from jobs.report.formatting import DASH, aligned_rows, milliseconds, times
from jobs.report.tables.labels import labels
from jobs.results.cell_summary import CellSummary
from jobs.results.quantities import LatencyStats

# Stage -> head of its column.
_HEADS = {
    "vision": "vision",
    "segment": "segment",
    "select": "select",
    "merge": "merge",
    "compress": "compress",
    "prefill": "prefill",
    "first_token": "1st token",
    "decode": "decode",
}


def render_profile(cells: Sequence[CellSummary]) -> str:
    """Plain text for a terminal: one row of medians and one of 90th percentiles per cell.

    Args:
        cells: Cells measured in profile mode.
    """
    header = ["ms: p50, p90", *_HEADS.values(), "speed-up", "GiB"]
    rows = []
    for name, cell in zip(labels(cells), cells, strict=True):
        rows.append([name, *_latencies(cell, lambda s: s.p50), _speed_up(cell), _peak(cell)])
        rows.append(["", *_latencies(cell, lambda s: s.p90), "", ""])
    owners = {cell.peak_of for cell in cells if cell.peak_of}
    notes = [
        "segment, select and merge are steps of compress. 1st token: vision, compress, prefill and",
        "output projection; speed-up: full's median over this one's.",
        *(f"GiB: peak memory of the {owner}." for owner in sorted(owners)),
    ]
    return "\n".join([*(text.rstrip() for text in aligned_rows(header, rows)), *notes])


def _latencies(cell: CellSummary, statistic: Callable[[LatencyStats], float]) -> list[str]:
    """One statistic of every stage."""
    found = [cell.latency_ms.get(stage) for stage in _HEADS]
    return [DASH if stats is None else milliseconds(statistic(stats)) for stats in found]


def _speed_up(cell: CellSummary) -> str:
    """How much sooner the first token comes than with all tokens."""
    return times(cell.versus_full.first_token_speedup if cell.versus_full else None)


def _peak(cell: CellSummary) -> str:
    """Peak memory with three digits."""
    return DASH if cell.peak_gib is None else f"{cell.peak_gib:.3g}"
