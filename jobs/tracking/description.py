"""What stands at the top of a run's page in the MLflow UI: its results in a few lines."""

from __future__ import annotations

from collections.abc import Sequence
from urllib.parse import quote

from jobs.results.cell_summary import CellSummary
from jobs.results.facts import JobFacts
from jobs.results.headlines import have_one_headline, headline_title, metric_title
from jobs.results.run_summary import RunSummary
from jobs.tracking.mlflow_runs import MAX_TAG

FIGURES = "figures"
"""Folder of an MLflow run that holds what its description shows."""
_MAX_ROWS = 60


def describe(facts: JobFacts, summary: RunSummary) -> str:
    """A run as Markdown: what was measured, and a table of its cells."""
    counts = summary.counts
    lines = [
        f"`tango {facts.kind}` of **{facts.model}** on {_benchmarks(summary.cells)}: "
        f"{counts.num_questions} answers about {counts.num_clips} clips, "
        f"{counts.num_failed} failed.",
        *([f"*{facts.note}*"] if facts.note else []),
        *(f"Left out: {entry.name} ({entry.reason})" for entry in facts.skipped),
        _table(summary.cells),
        f"Files: `report.html` (tables and plots), `answers/`. Run directory: `{facts.run_id}`.",
    ]
    return "\n\n".join(lines)


def with_pictures(text: str, run_id: str, names: Sequence[str]) -> str:
    """A description and what fits behind it of the files in `FIGURES` of its MLflow run.

    The addresses are those under which a server's own page of the run finds them.
    """
    for name in names:
        more = f"\n\n![](get-artifact?path={FIGURES}/{quote(name)}&run_id={run_id})"
        if len(text) + len(more) > MAX_TAG:
            break
        text += more
    return text


def describe_cell(cell: CellSummary, facts: JobFacts) -> str:
    """One cell of a sweep as Markdown."""
    note = f"\n\n*{facts.note}*" if facts.note else ""
    return f"Part of `{facts.run_id}`, **{facts.model}** on {cell.benchmark}.{note}\n\n" + _table(
        [cell]
    )


def _benchmarks(cells: Sequence[CellSummary]) -> str:
    return ", ".join(dict.fromkeys(cell.benchmark for cell in cells))


def _table(cells: Sequence[CellSummary]) -> str:
    """One line per cell."""
    rows = [
        f"| cell | {headline_title(cells)} | 95 % interval | tokens kept | questions |",
        "|---|---|---|---|---|",
    ]
    alone = have_one_headline(cells)
    for cell in cells[:_MAX_ROWS]:
        score = cell.headline
        value = f"{100 * score.value:.1f} %" if score else ""
        value += "" if alone else f" {metric_title(cell)}"
        interval = f"{100 * score.low:.1f} to {100 * score.high:.1f}" if score else ""
        kept = "" if cell.retention_actual is None else f"{100 * cell.retention_actual:.1f} %"
        name = f"{cell.benchmark}: {cell.name}".replace("|", "\\|")
        rows.append(f"| {name} | {value} | {interval} | {kept} | {cell.counts.num_questions} |")
    if len(cells) > _MAX_ROWS:
        rows.append(f"\n{len(cells) - _MAX_ROWS} more cells are in the runs below this one.")
    return "\n".join(rows)
