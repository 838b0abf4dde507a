"""The tables of a report as plain data, formatted and ready for its template."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

import pandas as pd

from jobs.report.tables.cells import (
    DASH,
    labels,
    milliseconds,
    p_value,
    percent,
    points,
    prefill_p50,
)
from jobs.results.facts import JobFacts
from jobs.results.summary import BASELINE, Summary
from tango_core.benchmarks import facts_of

_THROUGHPUT_NOTE = (
    "Throughput mode: stages overlap and a clip's questions share its prefix, so prefill and ttft "
    "are those of the clip's first question. Use profile mode to compare methods."
)
_PROFILE_NOTE = (
    "Profile mode: one clip at a time after a warm-up, encoded anew for every method, no shared "
    "prefix, every question measured. compress includes segment, select and merge; first token is "
    "vision, compress and ttft together."
)


def cell_rows(
    cells: Sequence[dict[str, Any]], page: Sequence[dict[str, Any]]
) -> list[dict[str, Any]]:
    """The table of some cells of one benchmark.

    Args:
        cells: One per row.
        page: All cells of the page: intervals of one benchmark are drawn on one scale.
    """
    shown = {cell["benchmark"] for cell in cells}
    alike = [cell for cell in page if cell["benchmark"] in shown]
    ends = [end for cell in alike for end in cell["accuracy_ci95"] or ()]
    low, high = (min(ends), max(ends)) if ends else (0.0, 1.0)
    scale = (low, max(high - low, 0.01))
    full = next((cell["accuracy"] for cell in cells if cell["method"] == BASELINE), None)
    return [_row(cell, name, scale, full) for cell, name in zip(cells, labels(cells), strict=True)]


def breakdowns(cells: Sequence[dict[str, Any]], benchmarks: Sequence[str]) -> list[dict[str, Any]]:
    """One table per benchmark and group, then those inside a group: cells down, values across."""
    tables = []
    for benchmark in benchmarks:
        own = [cell for cell in cells if cell["benchmark"] == benchmark]
        parts = [_grouped(cell) for cell in own]
        for group in dict.fromkeys(group for part in parts for group in part):
            name = f"{benchmark}: {group}" if len(benchmarks) > 1 else group
            table = _breakdown(name, own, [part.get(group, {}) for part in parts])
            averaged = group == facts_of(benchmark).macro_group
            tables.append(_with_mean(table, own) if averaged else table)
    return tables


def _with_mean(table: dict[str, Any], cells: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """The table with the mean over its values as a last column: MLVU's M-Avg of lmms-eval."""
    asked = max(cell["num_scored"] for cell in cells)
    entries = [
        {"text": percent(cell["accuracy_macro"]), "interval": "mean of the columns", "heat": 0}
        for cell in cells
    ]
    return {
        **table,
        "heads": [*table["heads"], {"name": "mean (M-Avg)", "count": asked}],
        "rows": [
            {**row, "entries": [*row["entries"], entry]}
            for row, entry in zip(table["rows"], entries, strict=True)
        ],
    }


def _grouped(cell: dict[str, Any]) -> dict[str, dict[str, Any]]:
    """Name of a table -> value -> accuracy; two groups at once make a table per outer value."""
    crossed = {
        f"{outer} {value}, {inner}": entries
        for outer, values in cell.get("accuracy_cross", {}).items()
        for value, groups in values.items()
        for inner, entries in groups.items()
    }
    return {**dict(sorted(cell["accuracy_by"].items())), **crossed}


def _breakdown(
    name: str, cells: Sequence[dict[str, Any]], entries: Sequence[dict[str, Any]]
) -> dict[str, Any]:
    """One table: a line per cell, a column per value that any of them has."""
    values = sorted({value for entry in entries for value in entry})
    counts = [max(entry.get(value, {"n": 0})["n"] for entry in entries) for value in values]
    scores = [score["accuracy"] for entry in entries for score in entry.values()]
    span = (min(scores), max(scores))
    heads = [{"name": v, "count": n} for v, n in zip(values, counts, strict=True)]
    rows = [
        {"name": label, "entries": [_heat(entry.get(value), span) for value in values]}
        for label, entry in zip(labels(cells), entries, strict=True)
    ]
    return {"name": name, "heads": heads, "rows": rows}


def latency_table(cells: Sequence[dict[str, Any]], mode: str) -> dict[str, Any]:
    """Stages across, cells down; only stages that some cell measured."""
    stages = list(dict.fromkeys(stage for cell in cells for stage in cell["latency_ms"]))
    rows = []
    for name, cell in zip(labels(cells), cells, strict=True):
        entries = []
        for stage in stages:
            times = cell["latency_ms"].get(stage)
            rest = f"{milliseconds(times['p90'])} n={times['n']:,}" if times else ""
            entries.append({"p50": milliseconds(times["p50"]) if times else DASH, "rest": rest})
        rows.append({"name": name, "entries": entries})
    return {
        "stages": [stage.replace("_", " ") for stage in stages],
        "rows": rows if stages else [],
        "caption": _PROFILE_NOTE if mode == "profile" else _THROUGHPUT_NOTE,
    }


def failure_reasons(failures: pd.DataFrame) -> list[dict[str, Any]]:
    """Failures by reason, the most frequent first."""
    rows = []
    for (status, error), part in failures.fillna({"error": ""}).groupby(["status", "error"]):
        clips = [str(clip) for clip in part["video_id"].unique()]
        examples = ", ".join(clips[:5]) + (" ..." if len(clips) > 5 else "")
        row = {"status": status, "error": error, "clips": len(clips), "questions": len(part)}
        rows.append({**row, "examples": examples})
    return sorted(rows, key=lambda row: (-row["clips"], str(row["error"])))


def provenance(facts: JobFacts, summary: Summary) -> list[tuple[str, str]]:
    """Everything that is needed to run it again, apart from the job itself."""
    rates = summary["throughput"]
    known = {
        "run": facts.run_id,
        "started": facts.started_at,
        "mode": facts.mode,
        "device": facts.device,
        "code": facts.git_commit,
        "caches": ", ".join(facts.caches),
        "clips per second": "" if not rates["clips_per_s"] else f"{rates['clips_per_s']:.3g}",
        "peak memory": _peak_memory(summary),
        **facts.versions,
    }
    options = {
        f"options of {cell.name}": json.dumps(dict(cell.options), default=str)
        for cell in facts.cells
        if cell.options
    }
    return [(name, value) for name, value in {**known, **options}.items() if value]


def _peak_memory(summary: Summary) -> str:
    """Largest memory in use and whose it was."""
    if summary.get("peak_gib") is None:
        return ""
    whose = f" of the {summary['peak_of']}" if summary.get("peak_of") else ""
    return f"{summary['peak_gib']:.2f} GiB{whose}"


def _row(
    cell: dict[str, Any], name: str, scale: tuple[float, float], full: float | None
) -> dict[str, Any]:
    """One line of the table of cells."""
    versus = cell["versus_full"] or {}
    low, high = cell["accuracy_ci95"] or (None, None)
    looked_up = cell["cache"]["hits"] + cell["cache"]["misses"]
    tflops = cell["prefill_tflops"]
    return {
        "name": name,
        "is_baseline": cell["method"] == BASELINE,
        "accuracy": percent(cell["accuracy"]),
        "harness": percent(cell.get("harness_accuracy")),
        "macro": percent(cell.get("accuracy_macro")),
        "answered": f"{percent(cell['accuracy_answered'])} % of the answers that could be read",
        "interval": "" if low is None else f"{percent(low)} to {percent(high)}",
        "strip": None if low is None else _strip(cell, scale, full),
        "difference": points(versus.get("difference")),
        "difference_interval": _interval(versus.get("difference_ci95")),
        "p": p_value(versus.get("p_value")),
        "others": [_other(comparison) for comparison in cell.get("versus", {}).values()],
        "kept": percent(cell["retention_actual"], 2),
        "with_newlines": percent(cell.get("retention_with_newlines"), 2),
        "equivalent": percent(cell["equivalent_retention"], 2),
        "prefill": milliseconds(prefill_p50(cell)),
        "tflops": DASH if tflops is None else f"{tflops:.3g}",
        "ttft_speedup": _times(versus.get("ttft_speedup")),
        "first_token_speedup": _times(versus.get("speedup_to_first_token")),
        "hits": f"{cell['cache']['hits']} / {looked_up}",
        "unparsed": cell["num_unparsed"],
        "failed": cell["num_failed"],
    }


def _other(versus: dict[str, Any] | None) -> dict[str, str]:
    """The comparison with a further baseline."""
    versus = versus or {}
    return {
        "difference": points(versus.get("difference")),
        "interval": _interval(versus.get("difference_ci95")),
        "p": p_value(versus.get("p_value")),
    }


def _interval(ends: Sequence[float] | None) -> str:
    """Both ends of the interval of a difference, in points."""
    return f"{points(ends[0])} to {points(ends[1])}" if ends else ""


def _times(ratio: float | None) -> str:
    """A speed-up."""
    return DASH if ratio is None else f"{ratio:.2f}\N{MULTIPLICATION SIGN}"


def _strip(
    cell: dict[str, Any], scale: tuple[float, float], full: float | None
) -> dict[str, float | None]:
    """Where the little interval is drawn, in % of its width."""

    def place(share: float) -> float:
        return round(4 + 92 * (share - scale[0]) / scale[1], 1)

    low, high = (place(end) for end in cell["accuracy_ci95"])
    return {
        "low": low,
        "width": round(high - low, 1),
        "value": place(cell["accuracy"]),
        "full": None if full is None else place(full),
    }


def _heat(entry: dict[str, Any] | None, span: tuple[float, float]) -> dict[str, Any]:
    """One accuracy of a break-down and how strongly it is tinted."""
    if entry is None:
        return {"text": DASH, "interval": "no question", "heat": 0}
    low, high = entry["ci95"]
    return {
        "text": percent(entry["accuracy"]),
        "interval": f"{percent(low)} to {percent(high)} %, n = {entry['n']}",
        "heat": round(4 + 36 * (entry["accuracy"] - span[0]) / max(span[1] - span[0], 0.01)),
    }
