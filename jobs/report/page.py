"""One self-contained HTML page about a run: no network, no scripts, light and dark."""

from __future__ import annotations

import base64
import struct
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path

from jinja2 import Environment, PackageLoader
from markupsafe import Markup

from jobs.report.controls import answers_of_run, control_notes
from jobs.report.formatting import estimate_percent, interval, percent
from jobs.report.notes import (
    answers_in,
    few_clips_notes,
    incomplete_group_notes,
    lost_answers_notes,
    skipped_notes,
)
from jobs.report.plots import Plot, draw_forests, draw_plots, save_plots
from jobs.report.sections import Row, cell_rows, failure_rows, latency_table, provenance
from jobs.report.tables.breakdowns import BreakdownRow, Entry, breakdowns
from jobs.report.tables.labels import baseline_names, tables_of_cells
from jobs.report.tables.scores import all_scores
from jobs.report.theme import CSS_SCALE, DARK
from jobs.report.viewer_links import failures_link, viewer_of
from jobs.results.cell_summary import CellSummary
from jobs.results.facts import JOB_FILE, JobFacts
from jobs.results.headlines import headline_title, metric_title
from jobs.results.readings import are_ranked, rule_notes, unread_notes
from jobs.results.run_summary import RunsSummary, RunSummary
from jobs.results.summary import write_summary
from pipeline.storage import Storage
from tango_core.benchmarks import facts_of

REPORT_FILE = "report.html"


def write_report(
    run_dir: Path, summary: RunSummary | None = None, clips: Sequence[str] = ()
) -> Path:
    """Write `plots/*.png` and `report.html` of a run from its directory alone.

    Args:
        run_dir: Holds `job.yaml`, `facts.json` and `answers/*.parquet`.
        summary: What `write_summary` returned for this run; `None` to summarise it here.
        clips: Figures of clips, see `gallery`.

    Returns:
        Path of the page.

    Raises:
        FileNotFoundError: If the directory is not a run or holds no answers.
    """
    facts = JobFacts.load(run_dir)
    summary = summary or write_summary(run_dir)
    job = run_dir / JOB_FILE
    ranked = [
        *few_clips_notes(summary.cells),
        *control_notes(summary.cells, answers_of_run(run_dir, summary.cells), run_dir),
    ]
    page = render_html(
        summary,
        facts,
        jobs={JOB_FILE: job.read_text()} if job.is_file() else {},
        notes=[
            *lost_answers_notes(facts, answers_in(summary.cells), [run_dir]),
            *skipped_notes([facts]),
            *unread_notes(summary.cells),
            *incomplete_group_notes(summary.cells),
            *(ranked if are_ranked(summary.cells) else []),
            *rule_notes(summary.cells),
        ],
        clips=clips,
        plots_in=run_dir / "plots",
        viewer=viewer_of(run_dir),
    )
    Storage.at(run_dir).write(REPORT_FILE, page.encode())
    return run_dir / REPORT_FILE


def render_html(
    summary: RunSummary | RunsSummary,
    facts: JobFacts,
    *,
    jobs: Mapping[str, str],
    notes: Sequence[str] = (),
    clips: Sequence[str] = (),
    plots_in: Path | None = None,
    viewer: str = "",
) -> str:
    """The page as text; everything that comes from data is escaped.

    Args:
        summary: Of a run, or of several.
        facts: What the run says about itself.
        jobs: Title -> resolved job as YAML.
        notes: Sentences to print under the table of cells.
        clips: Figures of clips as HTML, from `gallery`, which escapes what comes from data.
        plots_in: Receives the plots of the page as files, light theme; `None` writes none.
        viewer: Where the exported viewer of the run is, from the page; "" for no links into it.
    """
    cells = summary.cells
    plots, forests = draw_plots(cells), draw_forests(cells)
    if plots_in is not None:
        save_plots({**plots, **forests}, plots_in)
    benchmarks = list(dict.fromkeys(cell.benchmark for cell in cells))
    environment = Environment(loader=PackageLoader("jobs.report", "templates"), autoescape=True)
    return environment.get_template("report.html.j2").render(
        title=f"{facts.run_id} - tango",
        heading=f"{', '.join(benchmarks)} with {facts.model}",
        subtitle=_joined(facts.kind, facts.run_id, facts.started_at, facts.device),
        note=facts.note,
        cards=_cards(summary),
        others=baseline_names(cells),
        profile=facts.mode == "profile",
        headline=headline_title(cells),
        harness=any(cell.harness is not None for cell in cells),
        macro=_macro_groups(cells),
        groups=[
            {"name": title, "rows": cell_rows(members, cells)}
            for title, members in tables_of_cells(cells)
        ],
        notes=notes,
        plots=_both_themes(plots, draw_plots(cells, DARK)),
        forests=_both_themes(forests, draw_forests(cells, DARK)),
        clips=[Markup(figure) for figure in clips],
        all_scores=all_scores(cells),
        breakdowns=breakdowns(cells),
        link=partial(_failures_link, viewer=viewer, has_full=any(c.is_baseline for c in cells)),
        viewer=viewer,
        run=facts.run_id,
        latency=latency_table(cells, facts.mode),
        failures=failure_rows(summary.failures.reasons),
        more_failures=summary.failures.num_more,
        provenance=provenance(facts, summary),
        jobs=list(jobs.items()),
    )


def _failures_link(row: BreakdownRow, entry: Entry, *, viewer: str, has_full: bool) -> str:
    """Where the questions behind a number are that the cell lost; "" for no link."""
    if not entry.groups:
        return ""
    return failures_link(viewer, row.cell, entry.groups, has_full=has_full)


def _macro_groups(cells: Sequence[CellSummary]) -> str:
    """Groups over whose values the benchmarks average, or ""."""
    names = [facts_of(c.benchmark).macro_group for c in cells if c.macro is not None]
    return ", ".join(dict.fromkeys(name for name in names if name))


def _joined(*parts: str) -> str:
    """What is known, with dots between."""
    return " \N{MIDDLE DOT} ".join(part for part in parts if part)


def _cards(summary: RunSummary | RunsSummary) -> list[tuple[str, str]]:
    """Names and values of the figures on top."""
    if len(summary.cells) == 1:
        (cell,) = summary.cells
        ends = f", {interval(cell.headline)}" if cell.headline else ""
        others = {name: one for name, one in cell.scores.items() if name != cell.metric}
        cards = [
            (f"{metric_title(cell)} %{ends}", estimate_percent(cell.headline)),
            *((f"{metric_title(cell, n)} %", estimate_percent(one)) for n, one in others.items()),
            ("tokens kept %", percent(cell.equivalent_retention)),
        ]
    else:
        cards = [("cells", f"{len(summary.cells)}")]
    counts, cache, wall_s = summary.counts, summary.cache, summary.throughput.wall_s
    clips = "clips, summed over runs" if isinstance(summary, RunsSummary) else "clips"
    cards += [
        (clips, f"{counts.num_clips:,}"),
        *([("questions", f"{counts.num_different:,}")] if counts.num_different else []),
        ("answers", f"{counts.num_answered + counts.num_unparsed:,}"),
        ("failed clips", f"{counts.num_failed_clips:,}"),
        *([("answers on damaged clips", f"{counts.num_damaged:,}")] if counts.num_damaged else []),
        ("cache hits", f"{cache.hits:,} of {cache.lookups:,}"),
    ]
    return cards if wall_s is None else [*cards, ("wall time", _duration(wall_s))]


def _duration(seconds: float) -> str:
    """A wall time in the two units that matter."""
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    if hours:
        return f"{hours} h {minutes:02} min"
    return f"{minutes} min {rest:02} s" if minutes else f"{seconds:.1f} s"


def _both_themes(light: Mapping[str, Plot], dark: Mapping[str, Plot]) -> list[Row]:
    """Figures with their captions, in both themes, as base64."""
    return [
        {
            "caption": plot.caption,
            # Bytes 16 to 20 of a PNG are its width in pixels.
            "width": round(struct.unpack(">I", plot.image[16:20])[0] * CSS_SCALE),
            "light": base64.b64encode(plot.image).decode(),
            "dark": base64.b64encode(dark[name].image).decode(),
        }
        for name, plot in light.items()
    ]
