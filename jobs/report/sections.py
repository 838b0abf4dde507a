"""The tables of the page as plain data, formatted and ready for its template."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from jobs.report.formatting import (
    DASH,
    detectable,
    difference,
    difference_interval,
    estimate_percent,
    interval,
    milliseconds,
    p_value,
    percent,
    times,
)
from jobs.report.tables.labels import labels
from jobs.results.baselines import comparable
from jobs.results.cell_summary import CellSummary
from jobs.results.facts import JobFacts
from jobs.results.failures import FailureReason
from jobs.results.quantities import Comparison
from jobs.results.run_summary import RunsSummary, RunSummary
from tango_core.metrics import Estimate

_THROUGHPUT_NOTE = (
    "Throughput mode: stages overlap and a clip's questions share its prefix, so prefill and ttft "
    "are those of the clip's first question. Use profile mode to compare methods."
)
_PROFILE_NOTE = (
    "Profile mode: one clip at a time after a warm-up, encoded again for every method, no shared "
    "prefix, every question measured. compress includes segment, select and merge; first token is "
    "vision, compress and ttft together."
)


# A row of a table by the names that the template knows its columns by.
Row = dict[str, Any]


@dataclass(frozen=True)
class Strip:
    """Where the small interval of a score is drawn, in percent of the width of its column.

    Attributes:
        low: Left end.
        width: Length.
        value: The score.
        full: The score with all tokens, if known.
    """

    low: float
    width: float
    value: float
    full: float | None


def cell_rows(cells: Sequence[CellSummary], page: Sequence[CellSummary]) -> list[Row]:
    """The table of some cells of one benchmark.

    Args:
        cells: One per row.
        page: All cells of the page: intervals of one benchmark are drawn on one scale.
    """
    benchmarks = {cell.benchmark for cell in cells}
    drawn = [cell.headline for cell in page if cell.benchmark in benchmarks and cell.headline]
    low = min((one.low for one in drawn), default=0.0)
    high = max((one.high for one in drawn), default=1.0)
    scale = (low, max(high - low, 0.01))
    whole = [cell for cell in (*cells, *page) if cell.is_baseline]
    return [
        _row(
            cell,
            name,
            scale,
            next((full.headline for full in whole if comparable(full, cell)), None),
        )
        for cell, name in zip(cells, labels(cells), strict=True)
    ]


def latency_table(cells: Sequence[CellSummary], mode: str) -> Row:
    """Stages across, cells down; only stages that some cell measured.

    Returns:
        `stages`; `rows`, the name of a cell and what `_stage_time` says of every stage, empty if
        nothing was measured; `caption`, how it was measured.
    """
    stages = list(dict.fromkeys(stage for cell in cells for stage in cell.latency_ms))
    rows = [
        (name, [_stage_time(cell, stage) for stage in stages])
        for name, cell in zip(labels(cells), cells, strict=True)
    ]
    return {
        "stages": [stage.replace("_", " ") for stage in stages],
        "rows": rows if stages else [],
        "caption": _PROFILE_NOTE if mode == "profile" else _THROUGHPUT_NOTE,
    }


def failure_rows(reasons: Iterable[FailureReason]) -> list[Row]:
    """The table of failures: a row per reason, with the first clips."""
    return [
        {
            **vars(reason),
            "examples": ", ".join(reason.examples)
            + (" ..." if reason.clips > len(reason.examples) else ""),
        }
        for reason in reasons
    ]


def provenance(facts: JobFacts, summary: RunSummary | RunsSummary) -> list[tuple[str, str]]:
    """Everything that is needed to run it again, apart from the job itself."""
    clips_per_s = summary.throughput.clips_per_s
    known = {
        "run": facts.run_id,
        "started": facts.started_at,
        "mode": facts.mode,
        "device": facts.device,
        "code": facts.git_commit,
        "caches": ", ".join(facts.caches),
        "clips per second": f"{clips_per_s:.3g}" if clips_per_s else "",
        "peak memory": _peak_memory(summary),
        "float32 products": ", ".join(f"{k} {v}" for k, v in facts.float32_products.items()),
        **facts.versions,
    }
    options = {
        f"options of {cell.name}": json.dumps(dict(cell.options), default=str)
        for cell in facts.cells
        if cell.options
    }
    return [(name, value) for name, value in {**known, **options}.items() if value]


def _peak_memory(summary: RunSummary | RunsSummary) -> str:
    """Largest memory in use and whose it was."""
    if summary.peak_gib is None:
        return ""
    owner = f" of the {summary.peak_of}" if summary.peak_of else ""
    return f"{summary.peak_gib:.2f} GiB{owner}"


def _row(cell: CellSummary, name: str, scale: tuple[float, float], full: Estimate | None) -> Row:
    """One row of the table of cells."""
    tflops, versus = cell.prefill_tflops, cell.versus_full or Comparison()
    return {
        "name": name,
        "is_baseline": cell.is_baseline,
        "score": estimate_percent(cell.headline),
        "harness": percent(cell.harness),
        "macro": percent(cell.macro),
        "answered": ""
        if cell.answered is None
        else f"{percent(cell.answered)} % over the answers that could be read",
        "interval": interval(cell.headline),
        "strip": None if cell.headline is None else _strip(cell.headline, scale, full),
        "full": _difference(versus),
        "others": tuple(map(_difference, cell.versus.values())),
        "kept": percent(cell.retention_actual, 2),
        "beside_kept": _beside_kept(cell),
        "equivalent": percent(cell.equivalent_retention, 2),
        "prefill": milliseconds(cell.p50("prefill")),
        "tflops": DASH if tflops is None else f"{tflops:.3g}",
        "ttft_speedup": times(versus.ttft_speedup),
        "first_token_speedup": times(versus.first_token_speedup),
        "hits": f"{cell.cache.hits} / {cell.cache.lookups}",
        "unread": percent(cell.counts.unread_share),
        "failed": cell.counts.num_failed,
    }


def _beside_kept(cell: CellSummary) -> str:
    """What entered the language model with the visual tokens that were kept."""
    words = f"{percent(cell.retention_with_newlines, 2)} % with newline tokens"
    if not cell.clip_text_tokens:
        return words
    share = cell.clip_text_tokens / cell.tokens_kept if cell.tokens_kept else 0.0
    return f"{words}; {share:.2f} tokens of the clip's own text (times, labels) for each one kept"


def _difference(versus: Comparison | None) -> Row:
    """The comparison with one baseline."""
    return {
        "difference": difference(versus),
        "interval": difference_interval(versus),
        "p": p_value(versus),
        "detectable": detectable(versus),
    }


def _strip(estimate: Estimate, scale: tuple[float, float], full: Estimate | None) -> Strip:
    """Where the small interval is drawn."""

    def position(share: float) -> float:
        return round(4 + 92 * (share - scale[0]) / scale[1], 1)

    low, high = position(estimate.low), position(estimate.high)
    return Strip(
        low=low,
        width=round(high - low, 1),
        value=position(estimate.value),
        full=None if full is None else position(full.value),
    )


def _stage_time(cell: CellSummary, stage: str) -> tuple[str, str]:
    """Median of one stage, or a dash; its 90th percentile and number of measurements."""
    stats = cell.latency_ms.get(stage)
    if stats is None:
        return DASH, ""
    return milliseconds(stats.p50), f"{milliseconds(stats.p90)} n={stats.n:,}"
