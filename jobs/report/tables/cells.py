"""Tables with a row per cell or a row per method: terminal, Markdown, CSV, LaTeX."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from jobs.report.formatting import (
    DASH,
    Table,
    detectable,
    difference,
    difference_with_interval,
    estimate_percent,
    interval,
    markdown_text,
    milliseconds,
    p_value,
    percent,
    times,
)
from jobs.results.cell_summary import (
    BASELINE,
    CellSummary,
    have_one_headline,
    headline_title,
    metric_title,
)
from jobs.results.quantities import Comparison, LatencyStats
from jobs.results.replies import SHOWN_FROM
from tango_core.metrics import ACCURACY, Estimate

MAX_WIDTH = 100

_NARROWEST = 80
# Names of cells are not shortened below this length, to remain distinguishable.
_SHORTEST_NAME = 16
_COMPACT = {
    "accuracy %": "acc %",
    "harness %": "harn %",
    "95 % interval": "95 %",
    "tokens %": "tok %",
    "prefill ms": "ms",
    "cache hits": "hits",
    "unread %": "unread",
}
# Columns to omit in a narrow terminal, in this order.
_LEAST_WANTED = ("hits", "ms", "95 %", "unread")

# Columns of the CSV after the run, which are keys of `summary.json`.
_CSV_KEYS = (
    "benchmark",
    "protocol",
    "cell",
    "method",
    "num_questions",
    "num_answered",
    "num_unparsed",
    "num_failed",
    "retention_requested",
    "retention_actual",
    "retention_with_newlines",
    "clip_text_tokens",
    "equivalent_retention",
    "accuracy",
    "accuracy_answered",
    "accuracy_macro",
    "harness_accuracy",
    "prefill_tflops",
)


def table_width(is_terminal: bool, width: int) -> int | None:
    """Maximum width of a table: a terminal's width with a minimum; `None` for a file or pipe."""
    return max(_NARROWEST, width) if is_terminal else None


def render_table(cells: Sequence[CellSummary], max_width: int | None = MAX_WIDTH) -> str:
    """Aligned plain text that fits `max_width`, without a trailing newline.

    If it does not fit, headers are shortened, then the columns of cache hits, times and intervals
    are omitted, and then names are shortened in their middle.
    """
    header, rows = _table(cells, [cell.name for cell in cells], brief=True)
    if max_width is not None:
        header, rows = _fitting(header, rows, max_width)
    head, rule, *texts = Table(header, rows).aligned(max_width)
    rendered = [head, rule]
    parts = shared_parts(cells)
    for index, text in enumerate(texts):
        if parts[index] and (index == 0 or parts[index] != parts[index - 1]):
            rendered.append(parts[index])
        rendered.append(text)
    return "\n".join(rendered)


def _fitting(
    header: list[str], rows: list[list[str]], max_width: int
) -> tuple[list[str], list[list[str]]]:
    """The table unchanged if it fits, else with short headers and as many columns as fit."""
    if _width(header, rows) <= max_width:
        return header, rows
    header = [_COMPACT.get(name, name) for name in header]
    rows = [[text.replace(" to ", "-") if at else text for at, text in enumerate(r)] for r in rows]
    named = min(_SHORTEST_NAME, max(len(row[0]) for row in [header, *rows]))
    cut = [[row[0][:named], *row[1:]] for row in rows]
    for name in _LEAST_WANTED:
        if _width(header, cut) <= max_width:
            break
        if name not in header:
            continue
        at = header.index(name)
        header = header[:at] + header[at + 1 :]
        rows, cut = ([row[:at] + row[at + 1 :] for row in table] for table in (rows, cut))
    return header, rows


def _width(header: Sequence[str], rows: Sequence[Sequence[str]]) -> int:
    """Width of a table in characters."""
    return max(map(len, Table(header, rows).aligned()))


def cells_markdown(cells: Sequence[CellSummary]) -> str:
    """A GitHub-flavoured Markdown table."""
    return Table(*_table(cells, labels(cells))).markdown()


def cells_latex(cells: Sequence[CellSummary]) -> str:
    """A LaTeX `tabular` with the rules of the booktabs package."""
    return Table(*_table(cells, labels(cells))).latex()


def cells_csv(cells: Sequence[CellSummary]) -> str:
    """All figures of the cells as CSV, unrounded, one row per cell; empty if unknown."""
    names = baseline_names(cells)
    ends = ("", "_low", "_high", "_p", "_detectable", "_too_few_clips")
    header = [
        "run_id",
        *_CSV_KEYS,
        "accuracy_low",
        "accuracy_high",
        "metric",
        "score",
        "score_low",
        "score_high",
        *(f"versus_{name}{end}" for name in ("full", *names) for end in ends),
        "prefill_ms_p50",
        "cache_hits",
        "cache_misses",
    ]
    rows = []
    for cell in cells:
        data = cell.to_json()
        others = [cell.versus_full, *(cell.versus[name] for name in names)]
        rows.append(
            [
                cell.run_id,
                # If the headline metric is not accuracy, the harness's column holds its score.
                *(data.get(key, data.get(key.replace("accuracy", "score"))) for key in _CSV_KEYS),
                *((cell.accuracy.low, cell.accuracy.high) if cell.accuracy else (None, None)),
                cell.metric,
                *_ends(cell.headline),
                *(figure for versus in others for figure in _figures(versus)),
                cell.p50("prefill"),
                cell.cache.hits,
                cell.cache.misses,
            ]
        )
    return Table(header, rows).csv()


def _table(
    cells: Sequence[CellSummary], names: Sequence[str], *, brief: bool = False
) -> tuple[list[str], list[list[str]]]:
    """Formatted header and rows, with a column of harness scores if there are any.

    A brief table has only differences to `full`, without interval and p.
    """
    with_harness = any(cell.harness is not None for cell in cells)
    baselines = [] if brief else baseline_names(cells)
    header = [
        "cell",
        f"{headline_title(cells)} %",
        *(["harness %"] if with_harness else []),
        "95 % interval",
    ]
    for key in ("full", *baselines):
        header += [f"vs {key}"] if brief else [f"vs {key}", "p", "detectable"]
    header += ["tokens %"] if brief else ["asked %", "kept %", "with newlines %", "equivalent %"]
    with_unread = any(cell.counts.unread_share > SHOWN_FROM for cell in cells)
    header += ["prefill ms", "cache hits", *(["unread %"] if with_unread else []), "failed"]
    rows = []
    for name, cell in zip(names, cells, strict=True):
        differences: list[str] = []
        for versus in (cell.versus_full, *(cell.versus[key] for key in baselines)):
            differences += (
                [difference(versus)]
                if brief
                else [difference_with_interval(versus), p_value(versus), detectable(versus)]
            )
        rows.append(
            [
                name,
                estimate_percent(cell.headline),
                *([percent(cell.harness)] if with_harness else []),
                interval(cell.headline, unknown=DASH),
                *differences,
                *([] if brief else _retentions(cell)),
                percent(cell.equivalent_retention),
                milliseconds(cell.p50("prefill")),
                f"{cell.cache.hits}/{cell.cache.lookups}",
                *([percent(cell.counts.unread_share)] if with_unread else []),
                str(cell.counts.num_failed),
            ]
        )
    return header, rows


def _retentions(cell: CellSummary) -> list[str]:
    """Shares of the clip's tokens: requested, kept, and kept including newline tokens."""
    asked = f"{100 * cell.retention_requested:g}"
    return [asked, percent(cell.retention_actual), percent(cell.retention_with_newlines)]


def _ends(estimate: Estimate | None) -> tuple[float | None, ...]:
    """Value and interval ends of an estimate."""
    return (None, None, None) if estimate is None else (estimate.value, estimate.low, estimate.high)


def _figures(versus: Comparison | None) -> list[float | None]:
    """Difference, interval ends, p, detectable difference, and whether there are enough clips."""
    if versus is None or versus.paired is None:
        return [None] * 6
    paired = versus.paired
    return [
        paired.difference,
        paired.low,
        paired.high,
        paired.p_value,
        paired.detectable_difference,
        int(paired.too_few_clips),
    ]


def grid_markdown(cells: Sequence[CellSummary]) -> str:
    """Markdown tables per run and benchmark: headline metric, and differences to baselines."""
    parts = shared_parts(cells)
    return "\n\n".join(
        _section(part, [cell for cell, own in zip(cells, parts, strict=True) if own == part])
        for part in dict.fromkeys(parts)
    )


def _section(title: str, cells: Sequence[CellSummary]) -> str:
    """The tables of one run and benchmark."""
    texts = [f"## {markdown_text(title)}"] if title else []
    headline = headline_title(cells)
    headline = headline.capitalize() if headline == ACCURACY.title else headline
    texts.append(f"### {headline} %, in brackets % of the tokens really kept")
    texts.append(_table_grid(cells, [_headline(cell) for cell in cells]))
    for name in (BASELINE, *baseline_names(cells)):
        if any(_versus(cell, name) for cell in cells):
            title = markdown_text(name)
            texts.append(f"### Difference to `{title}` in points, 95 % interval, p, detectable")
            texts.append(_table_grid(cells, [_difference(_versus(cell, name)) for cell in cells]))
    return "\n\n".join(texts)


def _table_grid(cells: Sequence[CellSummary], texts: Sequence[str]) -> str:
    """A table of one string per cell, without empty rows and columns."""
    by_method: dict[str, dict[float, str]] = {}
    for cell, text in zip(cells, texts, strict=True):
        if text != DASH:
            by_method.setdefault(cell.series, {})[cell.retention_requested] = text
    retentions = sorted({share for row in by_method.values() for share in row})
    header = ["method", *(f"{100 * share:g} %" for share in retentions)]
    rows = [
        [name, *(row.get(share, DASH) for share in retentions)] for name, row in by_method.items()
    ]
    return Table(header, rows).markdown()


def _headline(cell: CellSummary) -> str:
    """The headline metric and the kept share averaged over the layers."""
    return f"{estimate_percent(cell.headline)} ({percent(cell.equivalent_retention)})"


def _versus(cell: CellSummary, name: str) -> Comparison | None:
    """The comparison with a named baseline."""
    return {BASELINE: cell.versus_full, **cell.versus}.get(name)


def _difference(versus: Comparison | None) -> str:
    """A difference with its interval, p, and the smallest detectable difference."""
    if versus is None or versus.paired is None:
        return DASH
    p = p_value(versus)
    p = p if p.startswith("<") else f"={p}"
    return f"{difference_with_interval(versus)}, p{p}, detectable {detectable(versus)}"


# Header of every stage's column.
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
    return "\n".join([*(text.rstrip() for text in Table(header, rows).aligned()), *notes])


def _latencies(cell: CellSummary, statistic: Callable[[LatencyStats], float]) -> list[str]:
    """One latency statistic of every stage."""
    found = [cell.latency_ms.get(stage) for stage in _HEADS]
    return [DASH if stats is None else milliseconds(statistic(stats)) for stats in found]


def _speed_up(cell: CellSummary) -> str:
    """Speed-up of the time to first token compared with `full`."""
    return times(cell.versus_full.first_token_speedup if cell.versus_full else None)


def _peak(cell: CellSummary) -> str:
    """Peak memory in GiB with three digits."""
    return DASH if cell.peak_gib is None else f"{cell.peak_gib:.3g}"


def labels(cells: Sequence[CellSummary]) -> list[str]:
    """One label per cell; run and benchmark are included only if they differ."""
    parts = shared_parts(cells)
    return [
        f"{part}: {cell.name}" if part else cell.name
        for part, cell in zip(parts, cells, strict=True)
    ]


def shared_parts(cells: Sequence[CellSummary]) -> list[str]:
    """Run and benchmark per cell, each only if the cells differ in it.

    If the headline metrics differ, the benchmark includes its own: `charades_sta (mIoU)`.
    """
    with_run = len({cell.run_id for cell in cells}) > 1
    with_benchmark = len({cell.benchmark for cell in cells}) > 1
    return [
        " / ".join([cell.run_id] * with_run + [name] * with_benchmark)
        for cell, name in zip(cells, benchmark_labels(cells), strict=True)
    ]


def benchmark_labels(cells: Sequence[CellSummary]) -> list[str]:
    """Benchmark per cell, with the headline metric if the cells differ in it."""
    if have_one_headline(cells):
        return [cell.benchmark for cell in cells]
    return [f"{cell.benchmark} ({metric_title(cell)})" for cell in cells]


def tables_of_cells(cells: Sequence[CellSummary]) -> list[tuple[str, list[CellSummary]]]:
    """Title and cells of each table: one per run and benchmark; small runs share one."""
    titles = shared_parts(cells)
    if len(set(titles)) > len(cells) / 2:
        many = len({cell.benchmark for cell in cells}) > 1
        titles = benchmark_labels(cells) if many else [""] * len(cells)
    tables: dict[str, list[CellSummary]] = {}
    for title, cell in zip(titles, cells, strict=True):
        tables.setdefault(title, []).append(cell)
    return list(tables.items())


def baseline_names(cells: Sequence[CellSummary]) -> list[str]:
    """Names of the baselines besides `full` that the cells were compared with, in order."""
    return list(dict.fromkeys(name for cell in cells for name in cell.versus))
