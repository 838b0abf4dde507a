"""Self-contained HTML page of a run, without network access or scripts, in light and dark."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from pathlib import Path

from jinja2 import Environment, PackageLoader

from jobs.report import charts
from jobs.report import formatting as fmt
from jobs.report.overview import overview
from jobs.report.plots import draw_forests, draw_plots, save_plots
from jobs.report.tables.breakdowns import Groups, all_scores, breakdowns
from jobs.report.tables.cells import cells_table, labels, prune_time, tables_of_cells
from jobs.report.tables.controls import CONTROLS_CAPTION, control_sentences, controls_table
from jobs.results.cell_summary import CellSummary, RunSummary, headline_title, series_of
from jobs.results.comparisons import Answers, ControlledRetention
from jobs.results.facts import JobFacts
from jobs.results.quantities import FailureList
from jobs.units import human_age
from jobs.viewer.links import list_link
from tango_core.benchmarks import facts_of
from tango_core.metrics import Estimate

# Path of the viewer exported by `tango view RUN --export RUN/viewer`, relative to the run.
VIEWER = "viewer/index.html"


def viewer_of(run_dir: Path) -> str:
    """Relative link to the exported viewer of a run; "" if there is none."""
    return VIEWER if (run_dir / VIEWER).is_file() else ""


def failures_link(
    viewer: str, cell: CellSummary, groups: Sequence[tuple[str, str]], *, has_full: bool
) -> str:
    """Link to the questions that a cell lost: correct with `full` and wrong in this cell.

    Args:
        viewer: Result of `viewer_of`.
        cell: Cell of the run that the viewer shows.
        groups: (name, value) pairs that select questions.
        has_full: Whether the run has the baseline `full`; otherwise, and for `full` itself, the
            link selects all wrong answers.

    Returns:
        The link; "" without a viewer, or for groups of which a question may have several values,
        because the viewer filters by the combined value.
    """
    several = facts_of(cell.benchmark).several_valued
    if not viewer or any(name in several for name, _ in groups):
        return ""
    outcome = "lost" if has_full and not cell.is_baseline else "wrong"
    return list_link(
        benchmark=cell.benchmark, groups=groups, column=cell.name, outcome=outcome, base=viewer
    )


def render_html(
    summary: RunSummary,
    facts: JobFacts,
    *,
    jobs: Mapping[str, str],
    notes: Sequence[str] = (),
    clips: Sequence[str] = (),
    plots_in: Path | None = None,
    viewer: str = "",
    answers: Answers | None = None,
    controlled: Sequence[ControlledRetention] = (),
) -> str:
    """Render the page as HTML; all data is escaped.

    Args:
        summary: Summary of one run or of several.
        facts: Recorded facts of the run.
        jobs: Resolved jobs as YAML, by title.
        notes: Sentences about problems.
        clips: Figures of clips as escaped HTML, from `gallery`.
        plots_in: Receives the plots of the page as files; `None` writes none.
        viewer: Relative link to the exported viewer of the run; "" for no links.
        answers: Returns the answers of the cell at an index, to compare the two best methods.
        controlled: Comparisons with the best control.
    """
    cells = summary.cells
    plots, forests = draw_plots(cells), draw_forests(cells)
    if plots_in is not None:
        save_plots([*plots, *forests], plots_in)
    has_full = any(cell.is_baseline for cell in cells)

    def shown(cell: CellSummary, groups: Groups, one: Estimate | None) -> fmt.Html:
        text = fmt.escaped(fmt.estimate_percent(one))
        if one and (url := failures_link(viewer, cell, groups, has_full=has_full)):
            text = fmt.Html(f'<a href="{fmt.escaped(url)}">{text}</a>')
        share = round(36 * one.value) if one else 0
        title = f"{fmt.interval(one)} %, n = {one.num_questions}" if one else "no question"
        return fmt.Html(f'<span class="heat" style="--heat:{share}%" title="{title}">{text}</span>')

    groups = breakdowns(cells, shown, lambda value, count: _with_small(value, f"n={count}"))

    environment = Environment(loader=PackageLoader("jobs.report", "templates"), autoescape=True)
    return environment.get_template("report.html.j2").render(
        title=f"{', '.join(dict.fromkeys(c.benchmark for c in cells))} with {facts.model}",
        facts=facts,
        size=_size(summary),
        styles=fmt.Html(charts.STYLE),
        light=fmt.Html(charts.variables(0)),
        dark=fmt.Html(charts.variables(1)),
        overview=overview(summary, cells, notes, answers=answers, controlled=controlled),
        scores=[(name, score_table(own).html()) for name, own in tables_of_cells(cells)],
        headline=headline_title(cells),
        all_columns=cells_table(cells).html(),
        all_scores=all_scores(cells),
        with_harness=any(cell.harness is not None for cell in cells),
        control_sentences=control_sentences(controlled),
        controls=controls_table(controlled).html() if controlled else "",
        controls_caption=CONTROLS_CAPTION,
        plots=plots,
        forests=forests,
        breakdowns=[(name, table.html()) for name, table in groups],
        clips=clips,
        viewer=viewer,
        latency=latency_table(cells),
        profile=facts.mode == "profile",
        failures=failure_table(summary.failures),
        num_more=summary.failures.num_more,
        options=options_table(facts).html(),
        provenance=fmt.Table(["what", "value"], provenance(facts, summary), 2).html(),
        jobs=jobs,
    )


def _size(summary: RunSummary) -> str:
    """What the run did, in a sentence."""
    counts, cache = summary.counts, summary.cache
    clips = f"{counts.num_clips:,} clips{' summed over runs' if summary.runs else ''}"
    parts = [
        f"{len(summary.cells):,} cells, {clips}, {counts.num_different:,} questions, "
        f"{counts.num_answered + counts.num_unparsed:,} answers",
        f"{cache.hits:,} of {cache.lookups:,} token sets from the cache",
    ]
    if summary.throughput.wall_s is not None:
        parts.append(human_age(summary.throughput.wall_s))
    return ", ".join(parts)


def _with_small(text: str, small: str) -> fmt.Html:
    """A number with a smaller text."""
    below = f" <small>{fmt.escaped(small)}</small>" if small else ""
    return fmt.Html(f"{fmt.escaped(text)}{below}")


def _rounded(text: str) -> str:
    """Numbers of an interval without decimals; the table of all columns has them."""
    return re.sub(r"(\d+\.\d+)", lambda match: f"{float(match[1]):.0f}", text)


def _strip(cell: CellSummary) -> fmt.Html:
    """The headline and its interval as a picture, with a line for the value of `full`."""
    score, versus = cell.headline, cell.versus_full
    if score is None:
        return fmt.Html()
    full = ""
    if versus and versus.paired:
        place = 100 * (score.value - versus.paired.difference)
        full = f'<i class="full" style="left:{place:.1f}%"></i>'
    return fmt.Html(
        f'<span class="strip"><i class="range" style="left:{100 * score.low:.1f}%;'
        f'width:{100 * (score.high - score.low):.1f}%"></i>{full}'
        f'<i class="dot" style="left:{100 * score.value:.1f}%"></i></span>'
    )


def score_table(cells: Sequence[CellSummary]) -> fmt.Table:
    """The columns that readers need first; `cells_table` has all."""
    failed = any(cell.counts.num_failed for cell in cells)
    rows = []
    for label, cell in zip(labels(cells), cells, strict=True):
        row: dict[str, object] = {
            "cell": label,
            f"{headline_title(cells)} %": _with_small(
                fmt.estimate_percent(cell.headline),
                _rounded(fmt.interval(cell.headline)),
            ),
            "95 % interval": _strip(cell),
        }
        for name, versus in cell.baselines.items():
            row[f"vs {name}, points"] = _with_small(
                fmt.difference(versus), _rounded(fmt.difference_interval(versus))
            )
            row[f"p {name}" if cell.versus else "p"] = fmt.p_value(versus)
        row["tokens %"] = fmt.percent(cell.equivalent_retention)
        if any(one.reads_question for one in cells):
            row["prune ms"] = prune_time(cell)
        row["first token ms"] = fmt.milliseconds(cell.first_token_ms)
        if failed:
            row["failed"] = str(cell.counts.num_failed)
        rows.append(row)
    return fmt.Table.of(rows)


def latency_table(cells: Sequence[CellSummary]) -> fmt.Html | None:
    """Median and 90th percentile of every stage; `None` if nothing was measured."""
    stages = list(dict.fromkeys(stage for cell in cells for stage in cell.latency_ms))
    speed_ups = {"ttft_speedup": "TTFT speed-up", "first_token_speedup": "first token speed-up"}
    measured = any(cell.versus_full and cell.versus_full.first_token_speedup for cell in cells)
    rows = []
    for label, cell in zip(labels(cells), cells, strict=True):
        row: dict[str, str] = {"cell": label}
        for stage in stages:
            time = cell.latency_ms.get(stage)
            small = f"{fmt.milliseconds(time.p90)} n={time.n:,}" if time else ""
            median = fmt.milliseconds(time.p50 if time else None)
            row[stage.replace("_", " ")] = _with_small(median, small)
        for key, name in speed_ups.items() if measured else ():
            row[name] = fmt.times(getattr(cell.versus_full, key, None))
        rows.append(row)
    return fmt.Table.of(rows).html() if stages else None


def failure_table(failures: FailureList) -> fmt.Html | None:
    """Reasons of failures; `None` if nothing failed."""
    rows = []
    for one in failures.reasons:
        examples = ", ".join(one.examples) + (" ..." if one.clips > len(one.examples) else "")
        rows.append([one.status, one.error, examples, str(one.clips), str(one.questions)])
    header = ["status", "reason", "first clips", "clips", "questions"]
    return fmt.Table(header, rows, text_columns=3).html() if rows else None


def options_table(facts: JobFacts) -> fmt.Table:
    """Options of every method; cells with equal options share a row."""
    shares: dict[tuple[str, str], dict[str, None]] = {}
    for cell in facts.cells:
        options = "; ".join(
            f"{name} {value if isinstance(value, str) else json.dumps(value, default=str)}"
            for name, value in cell.options.items()
        )
        key = series_of(cell.name), options or fmt.DASH
        shares.setdefault(key, {})[f"{100 * cell.retention:g}"] = None
    rows = [[name, ", ".join(own), options] for (name, options), own in shares.items()]
    return fmt.Table(["method", "tokens asked %", "options"], rows, text_columns=3)


def provenance(facts: JobFacts, summary: RunSummary) -> list[tuple[str, str]]:
    """Everything needed to reproduce the run besides the job: versions, devices."""
    clips_per_s = summary.throughput.clips_per_s
    owner = f" of the {summary.peak_of}" if summary.peak_of else ""
    known = {
        "run": facts.run_id,
        "started": facts.started_at,
        "mode": facts.mode,
        "device": facts.device,
        "code": facts.git_commit,
        "caches": ", ".join(facts.caches),
        "clips per second": f"{clips_per_s:.3g}" if clips_per_s else "",
        "peak memory": "" if summary.peak_gib is None else f"{summary.peak_gib:.2f} GiB{owner}",
        "float32 products": ", ".join(f"{k} {v}" for k, v in facts.float32_products.items()),
        "libraries": ", ".join(f"{name} {version}" for name, version in facts.versions.items()),
    }
    return [(name, value) for name, value in known.items() if value]
