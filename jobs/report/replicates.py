"""Compare runs of one recipe with several trainings of a model: sentences, table, figure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from jobs.config.overrides import read_recipe
from jobs.report.compare import ComparedRuns, compared_runs
from jobs.report.difference_plots import replicates_figure
from jobs.report.formatting import (
    DASH,
    Table,
    corrected_p,
    difference_with_interval,
    markdown_notes,
    percent,
    points,
)
from jobs.report.shards import told_apart
from jobs.report.theme import LIGHT, png
from jobs.results.cell_summary import headline_title
from jobs.results.facts import JOB_FILE
from jobs.results.quantities import Comparison
from jobs.results.replicates import (
    Agreement,
    ReplicatedCell,
    agreements,
    raise_if_other_recipes,
    replicated_cells,
)
from pipeline.storage import Storage
from tango_core.errors import InputError
from tango_core.metrics import Comparison as ScoreDifference

TABLE_FILE = "replicates.md"
NUMBERS_FILE = "replicates.csv"
FIGURE_FILE = "replicates.png"


@dataclass(frozen=True)
class ReplicatesReport:
    """Result of `report_replicates`.

    Attributes:
        page: Path of the table.
        sentences: One summary sentence per retention.
    """

    page: Path
    sentences: tuple[str, ...]


def report_replicates(run_dirs: Sequence[Path], folder: Path) -> ReplicatesReport:
    """Write `replicates.md`, `.csv` and `.png` for runs of one recipe with several trainings.

    Machine-dependent results (latencies) are not compared.

    Args:
        run_dirs: Finished runs, one per training; shards of one job count as one run.
        folder: Output directory.

    Raises:
        FileNotFoundError: If a directory is not a run or holds no answers.
        ValueError: If there are fewer than two runs, they have no question or cell in common,
            they differ in more than their training, or two use the same checkpoint.
    """
    if len({one.resolve() for one in run_dirs}) < len(run_dirs):
        raise InputError("a run is named twice; replicates are runs of several trainings")
    runs = [compared_runs([one], across=False) for one in run_dirs]
    raise_if_other_recipes([_recipe(one) for one in run_dirs])
    found = replicated_cells([(run.cells, run.answers) for run in runs])
    if all(one.cell.is_baseline for one in found):
        raise InputError("the runs share no cell of a method or a control")
    names = told_apart([run.runs[0].facts.run_id for run in runs], run_dirs)
    storage = Storage.at(folder)
    storage.write(NUMBERS_FILE, _numbers(found, names).encode())
    storage.write(FIGURE_FILE, png(replicates_figure(found, LIGHT)))
    sentences = tuple(_sentence(found, level) for level in agreements(found))
    page = _page(found, names, sentences, _left_out(runs, found))
    storage.write(TABLE_FILE, page.encode())
    return ReplicatesReport(folder / TABLE_FILE, sentences)


def _recipe(run_dir: Path) -> dict[str, Any]:
    """The resolved recipe of a run; empty if it has none."""
    path = run_dir / JOB_FILE
    return read_recipe(path) if path.is_file() else {}


def _table(found: Sequence[ReplicatedCell]) -> str:
    """Markdown table, one row per cell: value per run, mean, spread, differences, verdicts."""
    number = len(found[0].cells)
    header = (
        *("benchmark", "method", "asked %", "kept %"),
        *(f"run {index + 1}" for index in range(number)),
        *("mean", "SD", "vs full", "vs best control", "p (Holm)", "better in"),
    )
    rows = [
        (
            one.cell.benchmark,
            one.cell.series,
            f"{100 * one.cell.retention_requested:g}",
            percent(one.kept),
            *(percent(value) for value in one.values),
            percent(one.mean),
            percent(one.spread, 2),
            points(one.versus_full.difference if one.versus_full else None),
            difference_with_interval(Comparison(one.versus_control)),
            corrected_p(one.p_value),
            f"{one.verdicts.count('better')} of {number}" if one.control else DASH,
        )
        for one in found
    ]
    return Table(header, rows, text_columns=2).markdown()


def _numbers(found: Sequence[ReplicatedCell], names: Sequence[str]) -> str:
    """The table as CSV, unrounded; shares in [0, 1], differences in [-1, 1]."""

    def ends(versus: ScoreDifference | None) -> list[float | None]:
        return [getattr(versus, name, None) for name in ("difference", "low", "high")]

    header = (
        *("benchmark", "cell", "method", "metric", "retention_requested", "equivalent_retention"),
        *names,
        *("mean", "sd", "difference_to_full", "full_low", "full_high", "best_control"),
        *("difference_to_control", "control_low", "control_high", "p_holm", "verdict"),
        *(f"verdict {name}" for name in names),
    )
    rows = [
        (
            *(one.cell.benchmark, one.cell.name, one.cell.method, one.cell.metric),
            *(one.cell.retention_requested, one.kept, *one.values, one.mean, one.spread),
            *(*ends(one.versus_full), one.control, *ends(one.versus_control)),
            *(one.p_value, one.verdict, *one.verdicts),
        )
        for one in found
    ]
    return Table(header, rows).csv()


def _page(
    found: Sequence[ReplicatedCell],
    names: Sequence[str],
    sentences: Sequence[str],
    notes: Sequence[str],
) -> str:
    """The whole Markdown file."""
    title = headline_title([one.cell for one in found]).capitalize()
    listed = [f"{index + 1}. `{name}`" for index, name in enumerate(names)]
    said = [f"- {text}" for text in markdown_notes(sentences)]
    about = (
        f"{title} in %, by run, with mean and standard deviation over the runs. Differences in "
        "points are of scores averaged over the runs, paired by question; p by whole clips, "
        "corrected for the methods of the retention (Holm). *Better in*: runs whose own corrected "
        "comparison with their own best control shows it."
    )
    parts = [
        "# One recipe, several trainings",
        "\n".join(listed),
        "\n".join(said),
        f"![{title} by run and method]({FIGURE_FILE})",
        _table(found),
        about,
        *markdown_notes(notes),
    ]
    return "\n\n".join(parts) + "\n"


def _left_out(runs: Sequence[ComparedRuns], found: Sequence[ReplicatedCell]) -> list[str]:
    """Notes about cells and questions that not all runs have, and the notes of each run."""
    used = {(one.cell.benchmark, one.cell.name) for one in found}
    missing = {
        f"{cell.name} on {cell.benchmark}"
        for run in runs
        for cell in run.cells
        if (cell.benchmark, cell.name) not in used
    }
    notes = [f"Not in all runs and left out: {', '.join(sorted(missing))}."] if missing else []
    if any(len({cell.questions_digest for cell in one.cells}) > 1 for one in found):
        notes.append(
            "The runs were not asked the same questions: a run's own value counts all of its own, "
            "differences and p the questions that all were asked."
        )
    return [*notes, *dict.fromkeys(note for run in runs for note in run.notes)]


def _sentence(found: Sequence[ReplicatedCell], level: Agreement) -> str:
    """Summarise one retention."""
    own = [
        one
        for one in found
        if one.cell.benchmark == level.benchmark
        and abs(one.cell.retention_requested - level.retention) < 1e-9
    ]
    best = max(own, key=lambda one: one.mean)
    where = "" if len({one.cell.benchmark for one in found}) == 1 else f" on {level.benchmark}"
    parts = [
        f"At {100 * level.retention:g} %{where} {best.cell.series} is first on average "
        f"({percent(best.mean)}, from {percent(min(best.values))} to {percent(max(best.values))})"
    ]
    if set(level.firsts) == {best.cell.series}:
        parts.append(" and in every run.")
    else:
        parts.append(f"; by run: {', '.join(level.firsts)}.")
    if level.correlations:
        low, high = min(level.correlations), max(level.correlations)
        parts.append(f" Rank correlation between two runs: {low:.2f} to {high:.2f}.")
    judged = [one for one in own if one.control]
    if judged:
        parts.append(f" Best control: {judged[0].control}.")
    for verdict, word in (("better", "Better"), ("worse", "Worse")):
        every = [one for one in judged if set(one.verdicts) == {verdict}]
        some = [one for one in judged if verdict in one.verdicts and one not in every]
        if every:
            parts.append(f" {word} in every run: {_names(every)}.")
        if some:
            counts = ", ".join(
                f"{one.cell.series} ({one.verdicts.count(verdict)} of {len(one.cells)})"
                for one in some
            )
            parts.append(f" {word} in some: {counts}.")
    never = [one for one in judged if not {"better", "worse"} & set(one.verdicts)]
    if never:
        parts.append(f" No difference shown in any run: {_names(never)}.")
    return "".join(parts)


def _names(cells: Sequence[ReplicatedCell]) -> str:
    """Names of the cells' series."""
    return ", ".join(one.cell.series for one in cells)
