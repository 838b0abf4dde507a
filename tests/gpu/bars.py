"""What this project promises on an H100, beside what was measured."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from tests.gpu.bench_compress import TARGET_MS
from tests.gpu.bench_ttft import TARGET
from tests.gpu.command import Rows


def bars(parts: Mapping[str, Rows]) -> Rows:
    """One row per promise; one that could not be measured is not kept.

    Args:
        parts: Of `bench.py`, by title.
    """
    rows = []
    for row in _good(parts, "Compress", "median ms"):
        if row["method"] == "tango":
            name = f"Tango at 10 % of {row['clip']}, ms"
            rows.append(_bar(name, row["median ms"], "at most", TARGET_MS))
    first = _good(parts, "Time to first token at 7B", "speed-up")
    for row in first:
        if (target := TARGET.get(row["retention"])) is not None:
            name = f"TTFT at {row['retention']:.0%}, times as fast as with all tokens"
            rows.append({**_bar(name, row["speed-up"], "at least", target), "paper": row["paper"]})
    if pruned := [row["speed-up"] for row in first if row["retention"] < 1]:
        rows.append(_bar("TTFT at the slowest retention", min(pruned), "at least", 1.0))
    return rows or [{"bar": "nothing was measured", "kept": False}]


def _good(parts: Mapping[str, Rows], title: str, needed: str) -> Rows:
    """The rows of a part that hold a number."""
    return [row for row in parts.get(title, []) if row.get(needed) is not None]


def _bar(name: str, measured: float, way: str, target: float) -> dict[str, Any]:
    """A row."""
    kept = measured <= target if way == "at most" else measured >= target
    return {"bar": name, "measured": measured, "promised": f"{way} {target:g}", "kept": kept}
