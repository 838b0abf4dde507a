"""Self-contained HTML page of a run, without network access or scripts, in light and dark."""

from __future__ import annotations

import base64
import json
import struct
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path

from jinja2 import Environment, PackageLoader

from jobs.report import formatting
from jobs.report.plots import Plot, draw_forests, draw_plots, save_plots
from jobs.report.tables.breakdowns import all_scores, breakdowns
from jobs.report.tables.cells import labels, tables_of_cells
from jobs.report.theme import CSS_SCALE, DARK
from jobs.results.cell_summary import CellSummary, RunSummary, headline_title, metric_title
from jobs.results.facts import JobFacts
from jobs.units import human_age
from jobs.viewer.links import list_link
from tango_core.benchmarks import facts_of

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


def provenance(facts: JobFacts, summary: RunSummary) -> list[tuple[str, str]]:
    """Everything needed to reproduce the run besides the job: versions, devices, options."""
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
        **facts.versions,
    }
    options = {
        f"options of {cell.name}": json.dumps(dict(cell.options), default=str)
        for cell in facts.cells
        if cell.options
    }
    return [(name, value) for name, value in {**known, **options}.items() if value]


def render_html(
    summary: RunSummary,
    facts: JobFacts,
    *,
    jobs: Mapping[str, str],
    notes: Sequence[str] = (),
    clips: Sequence[str] = (),
    plots_in: Path | None = None,
    viewer: str = "",
) -> str:
    """Render the page as HTML; all data is escaped.

    Args:
        summary: Summary of one run or of several.
        facts: Recorded facts of the run.
        jobs: Resolved jobs as YAML, by title.
        notes: Sentences to print under the table of cells.
        clips: Figures of clips as escaped HTML, from `gallery`.
        plots_in: Receives the plots of the page as files, light theme; `None` writes none.
        viewer: Relative link to the exported viewer of the run; "" for no links.
    """
    cells = summary.cells
    plots, forests = draw_plots(cells), draw_forests(cells)
    if plots_in is not None:
        save_plots({**plots, **forests}, plots_in)
    environment = Environment(loader=PackageLoader("jobs.report", "templates"), autoescape=True)
    environment.filters |= {n: one for n, one in vars(formatting).items() if callable(one)}
    environment.filters["macro_group"] = lambda benchmark: facts_of(benchmark).macro_group
    return environment.get_template("report.html.j2").render(
        summary=summary,
        facts=facts,
        cells=cells,
        metric_title=metric_title,
        human_age=human_age,
        headline=headline_title(cells),
        groups=[
            (title, list(zip(labels(members), members, strict=True)))
            for title, members in tables_of_cells(cells)
        ],
        notes=notes,
        plots=_both_themes(plots, draw_plots(cells, DARK)),
        forests=_both_themes(forests, draw_forests(cells, DARK)),
        clips=clips,
        all_scores=all_scores(cells),
        breakdowns=breakdowns(cells),
        link=partial(failures_link, viewer, has_full=any(c.is_baseline for c in cells)),
        viewer=viewer,
        labelled=list(zip(labels(cells), cells, strict=True)),
        stages=list(dict.fromkeys(stage for cell in cells for stage in cell.latency_ms)),
        provenance=provenance(facts, summary),
        jobs=jobs,
    )


def _both_themes(light: Mapping[str, Plot], dark: Mapping[str, Plot]) -> list[dict[str, object]]:
    """Figures with their captions, in both themes, as base64."""
    return [
        {
            "caption": plot.caption,
            # Bytes 16 to 19 of a PNG are its width in pixels.
            "width": round(struct.unpack(">I", plot.image[16:20])[0] * CSS_SCALE),
            "light": base64.b64encode(plot.image).decode(),
            "dark": base64.b64encode(dark[name].image).decode(),
        }
        for name, plot in light.items()
    ]
