"""Self-contained HTML page of a run, without network access or scripts, in light and dark."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from jinja2 import Environment, PackageLoader

from jobs.report import charts
from jobs.report import formatting as fmt
from jobs.report.plots import save_plots, score_plot
from jobs.report.tables.breakdowns import all_scores, breakdowns, differences
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

# Path of the viewer exported by `tango view RUN --export RUN/viewer`, relative to the run.
VIEWER = "viewer/index.html"
# Columns that only the table of all columns has.
_LATER_COLUMNS = (
    *("detectable", "asked %", "kept %", "with newlines %", "prefill ms"),
    *("encoder TFLOPs", "prefill TFLOPs", "cache hits"),
)


def viewer_of(run_dir: Path) -> str:
    """Relative link to the exported viewer of a run; "" if there is none."""
    return VIEWER if (run_dir / VIEWER).is_file() else ""


@dataclass(frozen=True)
class Contents:
    """What a page shows.

    Attributes:
        summary: Summary of one run or of several, with all comparisons of the cells.
        facts: Recorded facts of the run.
        files: Resolved jobs and facts of the runs as text, by name.
        notes: Sentences about problems.
        clips: Figures of clips as escaped HTML, from `gallery`.
        viewer: Relative link to the exported viewer of the run; "" for no links.
        answers: Returns the answers of the cell at an index, to compare the two best methods.
        controlled: Comparisons with the best control.
    """

    summary: RunSummary
    facts: JobFacts
    files: Mapping[str, str]
    notes: Sequence[str] = ()
    clips: Sequence[str] = ()
    viewer: str = ""
    answers: Answers | None = None
    controlled: Sequence[ControlledRetention] = ()


def render_html(page: Contents, plots_in: Path | None = None) -> str:
    """Render the page as HTML; all data is escaped.

    Args:
        page: What it shows.
        plots_in: Receives the plots of the page as files; `None` writes none.
    """
    cells = page.summary.cells
    plots = [plot for plot in [score_plot(cells)] if plot is not None]
    if plots_in is not None:
        save_plots(plots, plots_in)
    environment = Environment(loader=PackageLoader("jobs.report", "templates"), autoescape=True)
    return environment.get_template("report.html.j2").render(
        vars(page),
        title=f"{', '.join(dict.fromkeys(c.benchmark for c in cells))} with {page.facts.model}",
        size=_size(page.summary),
        styles=fmt.Html(charts.STYLE),
        light=fmt.Html(charts.variables(0)),
        dark=fmt.Html(charts.variables(1)),
        overview=overview_of(page),
        scores=[(name, score_table(own)) for name, own in tables_of_cells(cells)],
        headline=headline_title(cells),
        all_columns=cells_table(cells),
        all_scores=all_scores(cells),
        with_harness=any(cell.harness is not None for cell in cells),
        control_sentences=control_sentences(page.controlled),
        controls=controls_table(page.controlled),
        controls_caption=CONTROLS_CAPTION,
        plots=plots,
        differences=differences(cells),
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


def score_table(cells: Sequence[CellSummary]) -> fmt.Table:
    """The columns that readers need first."""
    table = cells_table(cells)
    for name in _LATER_COLUMNS:
        table = table.without(name)
    return table


def failure_table(failures: FailureList) -> fmt.Table:
    """Reasons of failures."""
    rows = []
    for one in failures.reasons:
        examples = ", ".join(one.examples) + (" ..." if one.clips > len(one.examples) else "")
        rows.append([one.status, one.error, examples, str(one.clips), str(one.questions)])
    return fmt.Table(["status", "reason", "first clips", "clips", "questions"], rows, 3)


# Shares of kept tokens that differ from the requested one by more than this part of it are listed.
_OFF = 0.05


def overview_of(page: Contents) -> dict[str, list[fmt.Html]]:
    """Summarise one run or several for the top of the page.

    Returns:
        `best`: which method is best at which cost, a sentence per retention; `differences`: how it
        compares with others; `wrong`: what is wrong with the run; `unequal`: methods that kept more
        or fewer tokens than asked for.
    """
    cells = page.summary.cells
    best = [fmt.Html("Methods are not ranked, because too few replies could be read.")]
    differences = []
    if are_ranked(cells):
        best = [_best("", cell) for cell in cells if cell.is_baseline and cell.headline][:1]
        for where, level in _levels(cells).items():
            first, *others = sorted(level, key=lambda at: -_value(cells[at]))
            best.append(_best(f"{where} of the tokens: ", cells[first]))
            found = _compared(page, first, others[:1])
            differences += [fmt.Html(f"{fmt.escaped(where)}: {found}")] if found else []
    unequal = [
        cell.series
        for cell in cells
        if cell.equivalent_retention is not None
        and abs(cell.equivalent_retention / cell.retention_requested - 1) > _OFF
    ]
    return {
        "best": best,
        "differences": differences,
        "wrong": [fmt.escaped(text) for text in [*_faults(page.summary), *page.notes]],
        "unequal": [fmt.escaped(name) for name in dict.fromkeys(unequal)],
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
    shown, open_ = (
        [
            _ahead(versus, name)
            for (versus, _, name), p in zip(found, adjusted, strict=True)
            if (p < LEVEL) is wanted
        ]
        for wanted in (True, False)
    )
    name = f"<b>{fmt.escaped(cells[first].series)}</b>"
    parts = [f"{name} is {'; '.join(shown)} (significant after Holm's correction)"] if shown else []
    parts += [f"no difference shown: {name} is {'; '.join(open_)}"] if open_ else []
    return "; ".join(parts)


def _ahead(versus: Comparison, other: str) -> fmt.Html:
    """A difference in words."""
    size = fmt.points(abs(versus.difference)).lstrip("+")
    which = "ahead of" if versus.difference > 0 else "behind"
    text = f"{size} points {which} {other}" if versus.difference else f"equal to {other}"
    return fmt.escaped(text)


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
