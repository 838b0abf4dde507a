"""Self-contained HTML page of a run, without network access or scripts, in light and dark."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from jinja2 import Environment, PackageLoader

from jobs.report import charts
from jobs.report import formatting as fmt
from jobs.report.tables.breakdowns import all_scores, breakdowns
from jobs.report.tables.cells import (
    CONTROLS_CAPTION,
    cells_table,
    control_sentences,
    controls_table,
    latency_table,
    shared_parts,
    tables_of_cells,
)
from jobs.results.cell_summary import CellSummary, RunSummary, headline_title, metric_title
from jobs.results.comparisons import Answers, ControlledRetention, compare_answers
from jobs.results.facts import JobFacts
from jobs.results.quantities import FailureList, are_ranked
from jobs.units import human_age
from tango_core.compressors import CONTROLS
from tango_core.metrics import ACCURACY, Comparison
from tango_core.metrics.comparison import LEVEL, holm_adjusted

# Columns that only the table of all columns has.
_LATER_COLUMNS = (
    *("detectable", "asked %", "kept %", "with newlines %", "prefill ms"),
    *("encoder TFLOPs", "prefill TFLOPs", "cache hits"),
)


@dataclass(frozen=True)
class Contents:
    """What a page shows.

    Attributes:
        summary: Summary of one run or of several, with all comparisons of the cells.
        facts: Recorded facts of the run.
        files: Resolved jobs and facts of the runs as text, by name.
        notes: Sentences about problems.
        answers: Returns the answers of the cell at an index, to compare the two best methods.
        controlled: Comparisons with the best control.
    """

    summary: RunSummary
    facts: JobFacts
    files: Mapping[str, str]
    notes: Sequence[str] = ()
    answers: Answers | None = None
    controlled: Sequence[ControlledRetention] = ()


def render_html(page: Contents, plots_in: Path | None = None) -> str:
    """Render the page as HTML; all data is escaped.

    Args:
        page: What it shows.
        plots_in: Receives the plot of the page as a file; `None` writes none.
    """
    cells = page.summary.cells
    panels = charts.score_panels(cells)
    if panels and plots_in is not None:
        plots_in.mkdir(parents=True, exist_ok=True)
        plot = charts.in_one_file(panels)
        (plots_in / "score_vs_cost.svg").write_text(plot, encoding="utf-8")
    environment = Environment(loader=PackageLoader("jobs.report", "templates"), autoescape=True)
    return environment.get_template("report.html.j2").render(
        vars(page),
        title=f"{', '.join(dict.fromkeys(c.benchmark for c in cells))} with {page.facts.model}",
        size=_size(page.summary),
        styles=fmt.Html(charts.STYLE),
        light=fmt.Html(charts.variables(0)),
        dark=fmt.Html(charts.variables(1)),
        overview=overview_of(page),
        scores=[
            (name, cells_table(own).without(*_LATER_COLUMNS))
            for name, own in tables_of_cells(cells)
        ],
        headline=headline_title(cells),
        all_columns=cells_table(cells),
        all_scores=all_scores(cells),
        with_harness=any(cell.harness is not None for cell in cells),
        control_sentences=control_sentences(page.controlled),
        controls=controls_table(page.controlled),
        controls_caption=CONTROLS_CAPTION,
        panels=panels,
        breakdowns=breakdowns(cells),
        latency=latency_table(cells),
        failures=failure_table(page.summary.failures),
    )


def _size(summary: RunSummary) -> str:
    """What the run did, in a sentence."""
    counts, cache, wall_s = summary.counts, summary.cache, summary.throughput.wall_s
    clips = f"{counts.num_clips:,} clips{' summed over runs' if summary.runs else ''}"
    replies = counts.num_answered + counts.num_unparsed
    return (
        f"{len(summary.cells):,} cells, {clips}, {counts.num_different:,} questions, "
        f"{replies:,} answers, {cache.hits:,} of {cache.lookups:,} token sets from the cache"
        f"{'' if wall_s is None else f', {human_age(wall_s)}'}"
    )


def failure_table(failures: FailureList) -> fmt.Table:
    """Reasons of failures."""
    rows = []
    for one in failures.reasons:
        examples = ", ".join(one.examples) + (" ..." if one.clips > len(one.examples) else "")
        rows.append([one.status, one.error, examples, str(one.clips), str(one.questions)])
    return fmt.Table(["status", "reason", "first clips", "clips", "questions"], rows, 3)


def overview_of(page: Contents) -> dict[str, list[fmt.Html]]:
    """Summarise one run or several for the top of the page.

    Returns:
        `best`: which method is best at which cost, a sentence per retention; `differences`: how it
        compares with others; `wrong`: what is wrong with the run.
    """
    cells = page.summary.cells
    best = [fmt.Html("Methods are not ranked, because too few replies could be read.")]
    ahead = []
    if are_ranked(cells):
        best = [_best("", cell) for cell in cells if cell.is_baseline and cell.headline][:1]
        for where, level in _levels(cells).items():
            first, *others = sorted(level, key=lambda at: -_value(cells[at]))
            best.append(_best(f"{where} of the tokens: ", cells[first]))
            found = _compared(page, first, others[:1])
            ahead += [fmt.Html(f"{fmt.escaped(where)}: {found}")] if found else []
    return {
        "best": best,
        "differences": ahead,
        "wrong": [fmt.escaped(text) for text in [*_faults(page.summary), *page.notes]],
    }


def _levels(cells: Sequence[CellSummary]) -> dict[str, list[int]]:
    """Indices of methods by benchmark and requested share; of controls if there is no method."""
    found: dict[str, list[int]] = {}
    parts = shared_parts(cells)
    pruned = [at for at, cell in enumerate(cells) if cell.headline and not cell.is_baseline]
    methods = [at for at in pruned if cells[at].method not in CONTROLS]
    for at in sorted(methods or pruned, key=lambda at: cells[at].retention_requested):
        where = f"{parts[at]}, " if parts[at] else ""
        found.setdefault(f"{where}{100 * cells[at].retention_requested:g} %", []).append(at)
    return found


def _value(cell: CellSummary) -> float:
    return cell.headline.value if cell.headline else 0.0


def _best(where: str, cell: CellSummary) -> fmt.Html:
    """A cell with its score and its cost."""
    what = "% right" if cell.metric == ACCURACY.name else f"% {metric_title(cell)}"
    name = cell.series if where else f"All tokens ({cell.series})"
    costs = [f"{fmt.percent(cell.equivalent_retention)} % kept"] if where else []
    if cell.first_token_ms is not None:
        costs.append(f"{fmt.milliseconds(cell.first_token_ms)} ms to the first token")
    figures = ", ".join([f"{fmt.percent(_value(cell))} {what}", *costs])
    return fmt.Html(f"{fmt.escaped(where)}<b>{fmt.escaped(name)}</b>, {fmt.escaped(figures)}")


def _compared(page: Contents, first: int, others: Sequence[int]) -> str:
    """How a cell compares with the next method, with the best control and with `full`."""
    cells, answers = page.summary.cells, page.answers
    found: list[tuple[Comparison, float, str]] = []
    for other in others:
        versus = compare_answers(answers(first), answers(other)) if answers else None
        if versus:
            found.append((versus, versus.p_value, cells[other].series))
    for level in page.controlled:
        for method in level.methods:
            if method.cell is cells[first] and method.versus and method.p_value is not None:
                name = f"{level.control.series}, the best control"
                found.append((method.versus, method.p_value, name))
    full = cells[first].versus_full
    if full and full.paired:
        found.append((full.paired, full.paired.p_value, "full"))
    adjusted = holm_adjusted([p_value for _, p_value, _ in found])
    shown: dict[bool, list[str]] = {True: [], False: []}
    for (versus, _, name), p in zip(found, adjusted, strict=True):
        size = fmt.points(abs(versus.difference)).lstrip("+")
        which = "ahead of" if versus.difference > 0 else "behind"
        text = f"{size} points {which} {name}" if versus.difference else f"equal to {name}"
        shown[p < LEVEL].append(fmt.escaped(text))
    own, parts = f"<b>{fmt.escaped(cells[first].series)}</b>", []
    if shown[True]:
        parts.append(f"{own} is {'; '.join(shown[True])} (significant after Holm's correction)")
    if shown[False]:
        parts.append(f"no difference shown: {own} is {'; '.join(shown[False])}")
    return "; ".join(parts)


def _faults(summary: RunSummary) -> list[str]:
    counts = summary.counts
    found = [summary.note] if summary.note else []
    if counts.num_failed:
        found.append(
            f"{counts.num_failed:,} answers failed, about {counts.num_failed_clips:,} of "
            f"{counts.num_clips:,} clips, and count as wrong."
        )
    if counts.num_damaged:
        found.append(f"Answers about damaged clips: {counts.num_damaged:,}.")
    return found
