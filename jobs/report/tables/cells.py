"""Tables with a row per cell or a row per method: terminal, Markdown, CSV, LaTeX."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import replace

import pandas as pd

from jobs.report import formatting as fmt
from jobs.results.cell_summary import CellSummary, have_one_headline, headline_title, metric_title
from jobs.results.comparisons import AgainstControl, ControlledRetention
from jobs.results.quantities import SHOWN_FROM, Comparison
from tango_core.benchmarks import facts_of
from tango_core.metrics import ACCURACY

MAX_WIDTH = 100

_NARROWEST = 80
# Names of cells are not shortened below this length, to remain distinguishable.
_SHORTEST_NAME = 16
# Columns that every baseline has are called by it in a row.
_REPEATED = re.compile("^(p|detectable) .*")
# Columns to omit in a narrow terminal, in this order.
_LEAST_WANTED = (
    *("prefill ms", "cache hits", "95 % interval"),
    *("unread %", "first token ms", "vs full"),
)

# Columns that tables for a terminal and for `runs compare` omit.
_NOT_BRIEF = (
    *("asked %", "kept %", "with newlines %", "equivalent %", "prune ms"),
    *("encoder TFLOPs", "prefill TFLOPs"),
)
# Columns of the CSV after the run, which are keys of `summary.json`.
_CSV_KEYS = (
    *("benchmark", "protocol", "cell", "method"),
    *("num_questions", "num_answered", "num_unparsed", "num_failed"),
    *("retention_requested", "retention_actual", "retention_with_newlines", "clip_text_tokens"),
    *("equivalent_retention", "accuracy", "accuracy_answered", "accuracy_macro"),
    *("harness_accuracy", "first_token_ms", "reads_question", "encoder_tflops", "prefill_tflops"),
)
# End of a column about a comparison -> figure.
_CSV_ENDS = {
    "": "difference",
    "_low": "low",
    "_high": "high",
    "_p": "p_value",
    "_detectable": "detectable_difference",
}


def table_width(is_terminal: bool, width: int) -> int | None:
    """Maximum width of a table: a terminal's width with a minimum; `None` for a file or pipe."""
    return max(_NARROWEST, width) if is_terminal else None


def render_table(cells: Sequence[CellSummary], max_width: int | None = MAX_WIDTH) -> str:
    """Aligned plain text that fits `max_width`, without a trailing newline.

    If it does not fit, the columns of cache hits, times and intervals are omitted, and then names
    are shortened in their middle.
    """
    table = cells_table(cells, [cell.name for cell in cells], brief=True)
    for name in _LEAST_WANTED if max_width is not None else ():
        short = [[row[0][:_SHORTEST_NAME], *row[1:]] for row in table.rows]
        if fmt.Table(table.header, short).width <= (max_width or 0):
            break
        table = table.without(name)
    head, rule, *texts = table.plain(max_width=max_width, rule=True)
    rendered = [head, rule]
    parts = shared_parts(cells)
    for index, text in enumerate(texts):
        if parts[index] and (index == 0 or parts[index] != parts[index - 1]):
            rendered.append(parts[index])
        rendered.append(text)
    return "\n".join(rendered)


def cell_files(cells: Sequence[CellSummary], notes: Sequence[str]) -> dict[str, str]:
    """Names and contents of the files with a row per cell, and of the grid."""
    table = cells_table(cells)
    return {
        "table.md": "\n\n".join([table.markdown(), *fmt.markdown_notes(notes)]),
        "table.csv": cells_csv(cells),
        "table.tex": "\n".join([table.latex(), *fmt.latex_notes(notes)]),
        "grid.md": grid_markdown(cells),
    }


def cells_csv(cells: Sequence[CellSummary]) -> str:
    """All figures of the cells as CSV, unrounded, one row per cell; empty if unknown."""
    rows = []
    for cell in cells:
        data = cell.to_json()
        row: dict[str, object] = {"run_id": cell.run_id}
        # If the headline metric is not accuracy, the harness's column holds its score.
        row |= {k: data.get(k, data.get(k.replace("accuracy", "score"))) for k in _CSV_KEYS}
        row |= {f"accuracy_{end}": getattr(cell.accuracy, end, None) for end in ("low", "high")}
        row |= {"metric": cell.metric, "score": getattr(cell.headline, "value", None)}
        row |= {f"score_{end}": getattr(cell.headline, end, None) for end in ("low", "high")}
        for name, versus in cell.baselines.items():
            paired = versus.paired if versus else None
            row |= {f"versus_{name}{end}": getattr(paired, f, None) for end, f in _CSV_ENDS.items()}
            few = getattr(paired, "too_few_clips", None)
            row[f"versus_{name}_too_few_clips"] = few if few is None else int(few)
        row |= {f"{stage}_ms_p50": cell.p50(stage) for stage in ("compress", "prefill")}
        rows.append({**row, "cache_hits": cell.cache.hits, "cache_misses": cell.cache.misses})
    return fmt.Table.of(rows).csv()


def cells_table(
    cells: Sequence[CellSummary], names: Sequence[str] = (), *, brief: bool = False
) -> fmt.Table:
    """Formatted table, with a column of harness scores if there are any.

    Args:
        cells: One row each.
        names: Names of the rows; empty for `labels`.
        brief: Whether only differences to `full` are shown, without interval and p.
    """
    groups = (facts_of(cell.benchmark).macro_group for cell in cells if cell.macro is not None)
    averaged = ", ".join(dict.fromkeys(filter(None, groups)))
    rows = []
    for name, cell in zip(names or labels(cells), cells, strict=True):
        row = {
            "cell": name,
            f"{headline_title(cells)} %": fmt.estimate_percent(cell.headline),
            "harness %": fmt.percent(cell.harness),
            f"mean over {averaged} %": fmt.percent(cell.macro),
            "95 % interval": fmt.interval(cell.headline, unknown=fmt.DASH),
        }
        if brief:
            row["vs full"] = fmt.difference(cell.versus_full)
            row["tokens %"] = fmt.percent(cell.equivalent_retention)
        for key, versus in {} if brief else cell.baselines.items():
            row[f"vs {key}"] = fmt.difference_with_interval(versus)
            row[f"p {key}"] = fmt.p_value(versus)
            row[f"detectable {key}"] = fmt.detectable(versus)
        row |= {
            "asked %": f"{100 * cell.retention_requested:g}",
            "kept %": fmt.percent(cell.retention_actual),
            "with newlines %": fmt.percent(cell.retention_with_newlines),
            "equivalent %": fmt.percent(cell.equivalent_retention),
            "prune ms": prune_time(cell),
            "prefill ms": fmt.milliseconds(cell.p50("prefill")),
            "first token ms": fmt.milliseconds(cell.first_token_ms),
            "encoder TFLOPs": _three_digits(cell.encoder_tflops),
            "prefill TFLOPs": _three_digits(cell.prefill_tflops),
            "cache hits": f"{cell.cache.hits}/{cell.cache.lookups}",
            "unread %": fmt.percent(cell.counts.unread_share),
            "failed": str(cell.counts.num_failed),
        }
        rows.append(row)
    table = fmt.Table.of(rows)
    hidden = [*_NOT_BRIEF, f"mean over {averaged} %"] if brief else []
    optional = ("harness %", f"mean over {averaged} %")
    hidden += [name for name in optional if {row[name] for row in rows} == {fmt.DASH}]
    if all(cell.counts.unread_share <= SHOWN_FROM for cell in cells):
        hidden.append("unread %")
    for name in hidden:
        table = table.without(name)
    return fmt.Table([_REPEATED.sub(r"\1", name) for name in table.header], table.rows)


def prune_time(cell: CellSummary) -> str:
    """Median milliseconds of pruning, which some methods do once per question."""
    text = fmt.milliseconds(cell.p50("compress"))
    return f"{text} per question" if cell.reads_question and text != fmt.DASH else text


def _three_digits(value: float | None) -> str:
    return fmt.DASH if value is None else f"{value:.3g}"


def grid_markdown(cells: Sequence[CellSummary]) -> str:
    """Markdown tables per run and benchmark: headline metric, and differences to baselines."""
    texts = []
    parts = shared_parts(cells)
    for part in dict.fromkeys(parts):
        own = [cell for cell, name in zip(cells, parts, strict=True) if name == part]
        texts += [f"## {fmt.markdown_text(part)}"] if part else []
        headline = headline_title(own)
        headline = headline.capitalize() if headline == ACCURACY.title else headline
        texts.append(f"### {headline} %, in brackets % of the tokens really kept")
        values = [
            f"{fmt.estimate_percent(c.headline)} ({fmt.percent(c.equivalent_retention)})"
            for c in own
        ]
        texts.append(_grid(own, values))
        for name in own[0].baselines:
            title = fmt.markdown_text(name)
            compared = [_difference(cell.baselines.get(name)) for cell in own]
            if set(compared) != {fmt.DASH}:
                texts.append(f"### Difference to `{title}` in points, 95 % interval, p, detectable")
                texts.append(_grid(own, compared))
    return "\n\n".join(texts)


def _grid(cells: Sequence[CellSummary], texts: Sequence[str]) -> str:
    """A table of one string per cell, without empty rows and columns."""
    found = pd.DataFrame(
        {
            "method": [cell.series for cell in cells],
            "retention": [cell.retention_requested for cell in cells],
            "text": texts,
        }
    )
    found = found[found["text"] != fmt.DASH].drop_duplicates(["method", "retention"], keep="last")
    grid = found.pivot(index="method", columns="retention", values="text").fillna(fmt.DASH)
    grid = grid.reindex(found["method"].unique())
    header = ["method", *(f"{100 * share:g} %" for share in grid.columns)]
    return fmt.Table(header, grid.reset_index().to_numpy().tolist()).markdown()


def _difference(versus: Comparison | None) -> str:
    """A difference with its interval, p, and the smallest detectable difference."""
    if versus is None or versus.paired is None:
        return fmt.DASH
    p = fmt.p_value(versus)
    p = p if p.startswith("<") else f"={p}"
    return f"{fmt.difference_with_interval(versus)}, p{p}, detectable {fmt.detectable(versus)}"


def render_profile(cells: Sequence[CellSummary]) -> str:
    """Plain text for a terminal: times of cells that were measured in profile mode."""
    stages = ("vision", "compress", "prefill", "first_token", "decode")
    title = "Median milliseconds, 90th percentile in brackets; speed-up against full:"
    return "\n".join([title, *latency_table(cells, stages).plain(rule=True)])


def latency_table(cells: Sequence[CellSummary], stages: Sequence[str] = ()) -> fmt.Table:
    """Median of some stages in ms, the 90th percentile in brackets, and speed-ups.

    Args:
        cells: One row each.
        stages: Stages; empty for all that were measured.
    """
    stages = stages or list(dict.fromkeys(stage for cell in cells for stage in cell.latency_ms))
    rows = []
    for label, cell in zip(labels(cells), cells, strict=True):
        row = {"cell": label}
        for stage in stages:
            time = cell.latency_ms.get(stage)
            ninth = f" ({fmt.milliseconds(time.p90)})" if time else ""
            median = fmt.milliseconds(cell.p50(stage))
            row[stage.replace("_", " ")] = f"{median}{ninth}"
        versus = cell.versus_full
        row["TTFT speed-up"] = fmt.times(versus.ttft_speedup if versus else None)
        row["first token speed-up"] = fmt.times(versus.first_token_speedup if versus else None)
        rows.append(row)
    table = fmt.Table.of(rows)
    if any(cell.versus_full and cell.versus_full.first_token_speedup for cell in cells):
        return table
    return table.without("TTFT speed-up").without("first token speed-up")


CONTROLS_CAPTION = (
    "Difference to the best control at the retention in points, paired by question; p by "
    "whole clips, corrected for the methods of the retention (Holm). The last two columns are "
    "accuracies on questions that all tokens answer rightly, where the control fails and where "
    "it does not, with the number of questions. A control called full with a setting of the "
    "model has all tokens of a smaller input, as a share of those of the methods' input."
)
_VERDICTS = {"better": "Better than it", "worse": "Worse", "open": "No difference shown"}


def control_sentences(found: Sequence[ControlledRetention]) -> list[str]:
    """Comparisons with the best control, one sentence per retention."""
    several = len({one.control.benchmark for one in found}) > 1
    return [_control_sentence(one, several) for one in found]


def controls_table(found: Iterable[ControlledRetention]) -> fmt.Table:
    """Table of all comparisons with controls, with accuracy by VTC-Bench's filter, in %."""
    rows = []
    for one in found:
        for method in one.methods:
            parts, control = method.filtered, one.control
            hard, easy = (
                (
                    f"{fmt.percent(parts.hard)} ({parts.num_hard})",
                    f"{fmt.percent(parts.easy)} ({parts.num_easy})",
                )
                if parts
                else (fmt.DASH, fmt.DASH)
            )
            rows.append(
                {
                    "benchmark": control.benchmark,
                    "asked %": f"{100 * one.retention:g}",
                    "best control": control.series,
                    "kept %": fmt.percent(control.equivalent_retention),
                    "method": method.cell.series,
                    "kept % ": fmt.percent(method.cell.equivalent_retention),
                    "difference": _control_difference(method),
                    "p (Holm)": fmt.corrected_p(method.p_value),
                    "where the control fails": hard,
                    "where it does not": easy,
                }
            )
    return replace(fmt.Table.of(rows), text_columns=5)


def _control_sentence(one: ControlledRetention, several: bool) -> str:
    """Summarise the comparisons of one retention in a sentence."""
    where = f" on {one.control.benchmark}" if several else ""
    if size := one.methods[0].cell.input_size:
        where += f" with {size}"
    control = one.control
    value = control.headline.value if control.headline else None
    what = "right" if control.metric == ACCURACY.name else metric_title(control)
    # The share of a smaller input is one of the methods' input.
    of_what = " of the whole input" if control.is_baseline else ""
    parts = [
        f"At {100 * one.retention:g} %{where} the best control is {control.series} "
        f"({fmt.percent(value)} % {what} with {fmt.percent(control.equivalent_retention)} % of the "
        f"tokens{of_what})."
    ]
    for verdict, text in _VERDICTS.items():
        own = [_named_method(method) for method in one.methods if method.verdict == verdict]
        parts += [f"{text}: {', '.join(own)}."] if own else []
    return " ".join(parts)


def _named_method(method: AgainstControl) -> str:
    """A method with its difference to the control, and its tokens where they are not equal."""
    kept = ""
    if method.equal_tokens is False:
        kept = f" with {fmt.percent(method.cell.equivalent_retention)} % of the tokens"
    return f"{method.cell.series} ({_control_difference(method)}{kept})"


def _control_difference(method: AgainstControl) -> str:
    """The difference to the control in fmt.points."""
    return fmt.points(method.versus.difference if method.versus else None)


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
