"""The table of a profile: what every stage of every cell took, and the speed-up that remains."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from jobs.report.tables.cells import DASH, labels, milliseconds

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


def render_profile(cells: Sequence[dict[str, Any]]) -> str:
    """Plain text for a terminal: one line of medians and one of 90th percentiles per cell.

    Args:
        cells: The flat summaries under `cells` of a `summary.json`, measured in profile mode.
    """
    lines = [["ms: p50, p90", *_HEADS.values(), "speed-up", "GiB"]]
    for name, cell in zip(labels(cells), cells, strict=True):
        lines.append([name, *_times(cell, "p50"), _speed_up(cell), _peak(cell)])
        lines.append(["", *_times(cell, "p90"), "", ""])
    widths = [max(len(line[column]) for line in lines) for column in range(len(lines[0]))]
    rendered = [_aligned(line, widths) for line in lines]
    rendered.insert(1, "  ".join("─" * width for width in widths))
    whose = {cell["peak_of"] for cell in cells if cell["peak_of"]}
    notes = [
        "segment, select and merge are steps of compress. 1st token: vision, compress, prefill and",
        "output projection; speed-up: full's median over this one's.",
        *(f"GiB: peak memory of the {kind}." for kind in sorted(whose)),
    ]
    return "\n".join([*rendered, *notes])


def _times(cell: dict[str, Any], statistic: str) -> list[str]:
    """One statistic of every stage."""
    latency = cell["latency_ms"]
    return [milliseconds(latency.get(stage, {}).get(statistic)) for stage in _HEADS]


def _speed_up(cell: dict[str, Any]) -> str:
    """How much sooner the first token comes than with all tokens."""
    ratio = (cell["versus_full"] or {}).get("speedup_to_first_token")
    return DASH if ratio is None else f"{ratio:.2f}\N{MULTIPLICATION SIGN}"


def _peak(cell: dict[str, Any]) -> str:
    """Peak memory with three digits."""
    return DASH if cell["peak_gib"] is None else f"{cell['peak_gib']:.3g}"


def _aligned(line: Sequence[str], widths: Sequence[int]) -> str:
    """The name to the left, numbers to the right."""
    numbers = [text.rjust(width) for text, width in zip(line[1:], widths[1:], strict=True)]
    return "  ".join([line[0].ljust(widths[0]), *numbers]).rstrip()
