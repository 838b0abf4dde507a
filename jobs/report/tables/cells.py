"""Tables with a row per cell or a row per method: terminal, Markdown, CSV, LaTeX."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import replace

from jobs.report import formatting as fmt
from jobs.results.cell_summary import (
    BASELINE,
    CellSummary,
    have_one_headline,
    headline_title,
    metric_title,
)
from jobs.results.comparisons import AgainstControl, ControlledRetention
from jobs.results.quantities import SHOWN_FROM
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
    rendered, before = [head, rule], ""
    for part, text in zip(shared_parts(cells), texts, strict=True):
        rendered += [text] if part == before else [part, text]
        before = part
    return "\n".join(rendered)


def cell_files(cells: Sequence[CellSummary], notes: Sequence[str]) -> dict[str, str]:
    """Names and contents of the files with a row per cell."""
    table = cells_table(cells)
    return {
        "table.md": "\n\n".join([table.markdown(), *fmt.markdown_notes(notes)]),
        "table.csv": cells_csv(cells),
        "table.tex": "\n".join([table.latex(), *fmt.latex_notes(notes)]),
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
        for name, paired in cell.paired.items():
            row |= {f"versus_{name}{end}": getattr(paired, f, None) for end, f in _CSV_ENDS.items()}
            row[f"versus_{name}_too_few_clips"] = paired and int(paired.too_few_clips)
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
    macro = f"mean over {', '.join(dict.fromkeys(filter(None, groups)))} %"
    rows = []
    for name, cell in zip(names or labels(cells), cells, strict=True):
        row = {
            "cell": name,
            f"{headline_title(cells)} %": fmt.estimate_percent(cell.headline),
            "harness %": fmt.percent(cell.harness),
            macro: fmt.percent(cell.macro),
            "95 % interval": fmt.interval(cell.headline, unknown=fmt.DASH),
        }
        if brief:
            row["vs full"] = fmt.difference(cell.paired[BASELINE])
            row["tokens %"] = fmt.percent(cell.equivalent_retention)
        for key, paired in {} if brief else cell.paired.items():
            row[f"vs {key}"] = fmt.difference_with_interval(paired)
            row[f"p {key}"] = fmt.p_value(paired)
            row[f"detectable {key}"] = fmt.detectable(paired)
        prune = fmt.milliseconds(cell.p50("compress"))
        per_question = cell.reads_question and prune != fmt.DASH
        row |= {
            "asked %": f"{100 * cell.retention_requested:g}",
            "kept %": fmt.percent(cell.retention_actual),
            "with newlines %": fmt.percent(cell.retention_with_newlines),
            "equivalent %": fmt.percent(cell.equivalent_retention),
            "prune ms": f"{prune} per question" if per_question else prune,
            "prefill ms": fmt.milliseconds(cell.p50("prefill")),
            "first token ms": fmt.milliseconds(cell.first_token_ms),
            "encoder TFLOPs": _three_digits(cell.encoder_tflops),
            "prefill TFLOPs": _three_digits(cell.prefill_tflops),
            "cache hits": f"{cell.cache.hits}/{cell.cache.lookups}",
            "unread %": fmt.percent(cell.counts.unread_share),
            "failed": str(cell.counts.num_failed),
        }
        rows.append(row)
    hidden = [name for name in ("harness %", macro) if {row[name] for row in rows} == {fmt.DASH}]
    hidden += [*_NOT_BRIEF, macro] if brief else []
    if all(cell.counts.unread_share <= SHOWN_FROM for cell in cells):
        hidden.append("unread %")
    table = fmt.Table.of(rows).without(*hidden)
    return replace(table, header=[_REPEATED.sub(r"\1", name) for name in table.header])


def _three_digits(value: float | None) -> str:
    return fmt.DASH if value is None else f"{value:.3g}"


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
    speed_ups = {"TTFT speed-up": "ttft_speedup", "first token speed-up": "first_token_speedup"}
    rows = []
    for label, cell in zip(labels(cells), cells, strict=True):
        row = {"cell": label}
        for stage in stages:
            time = cell.latency_ms.get(stage)
            ninth = f" ({fmt.milliseconds(time.p90)})" if time else ""
            row[stage.replace("_", " ")] = f"{fmt.milliseconds(cell.p50(stage))}{ninth}"
        for title, name in speed_ups.items():
            row[title] = fmt.times(getattr(cell.versus_full, name, None))
        rows.append(row)
    table = fmt.Table.of(rows)
    known = any(cell.versus_full and cell.versus_full.first_token_speedup for cell in cells)
    return table if known else table.without(*speed_ups)


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
    sentences = []
    for one in found:
        control, size = one.control, one.methods[0].cell.input_size
        where = f" on {control.benchmark}" if several else ""
        where += f" with {size}" if size else ""
        what = "right" if control.metric == ACCURACY.name else metric_title(control)
        # The share of a smaller input is one of the methods' input.
        of_what = " of the whole input" if control.is_baseline else ""
        parts = [
            f"At {100 * one.retention:g} %{where} the best control is {control.series} "
            f"({fmt.estimate_percent(control.headline)} % {what} with "
            f"{fmt.percent(control.equivalent_retention)} % of the tokens{of_what})."
        ]
        for verdict, text in _VERDICTS.items():
            own = [_named_method(method) for method in one.methods if method.verdict == verdict]
            parts += [f"{text}: {', '.join(own)}."] if own else []
        sentences.append(" ".join(parts))
    return sentences


def _named_method(method: AgainstControl) -> str:
    """A method with its difference to the control, and its tokens where they are not equal."""
    kept = ""
    if method.equal_tokens is False:
        kept = f" with {fmt.percent(method.cell.equivalent_retention)} % of the tokens"
    return f"{method.cell.series} ({fmt.difference(method.versus)}{kept})"


def controls_table(found: Iterable[ControlledRetention]) -> fmt.Table:
    """Table of all comparisons with controls, with accuracy by VTC-Bench's filter, in %."""
    rows = []
    for one in found:
        for method in one.methods:
            hard = easy = fmt.DASH
            if parts := method.filtered:
                hard = f"{fmt.percent(parts.hard)} ({parts.num_hard})"
                easy = f"{fmt.percent(parts.easy)} ({parts.num_easy})"
            rows.append(
                {
                    "benchmark": one.control.benchmark,
                    "asked %": f"{100 * one.retention:g}",
                    "best control": one.control.series,
                    "kept %": fmt.percent(one.control.equivalent_retention),
                    "method": method.cell.series,
                    "kept % ": fmt.percent(method.cell.equivalent_retention),
                    "difference": fmt.difference(method.versus),
                    "p (Holm)": fmt.corrected_p(method.p_value),
                    "where the control fails": hard,
                    "where it does not": easy,
                }
            )
    return replace(fmt.Table.of(rows), text_columns=5)


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
