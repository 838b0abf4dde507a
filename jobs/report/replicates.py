"""Compare runs of one recipe with several trainings of a model: sentences, table, figure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from jobs.report import charts
from jobs.report import formatting as fmt
from jobs.report.compare import ComparedRuns, compared_runs
from jobs.report.plots import replicates_panels
from jobs.report.shards import recipe_of, told_apart
from jobs.results.cell_summary import headline_title
from jobs.results.quantities import Comparison
from jobs.results.replicates import (
    ReplicatedCell,
    levels_of,
    raise_if_other_recipes,
    replicated_cells,
)
from pipeline.storage import Storage
from tango_core.errors import InputError
from tango_core.metrics import Comparison as ScoreDifference

TABLE_FILE = "replicates.md"
NUMBERS_FILE = "replicates.csv"
FIGURE_FILE = "replicates.svg"


def report_replicates(run_dirs: Sequence[Path], folder: Path) -> tuple[Path, list[str]]:
    """Write `replicates.md`, `.csv` and `.svg` for runs of one recipe with several trainings.

    Machine-dependent results (latencies) are not compared.

    Args:
        run_dirs: Finished runs, one per training; shards of one job count as one run.
        folder: Output directory.

    Returns:
        Path of the table, and one summary sentence per retention.

    Raises:
        FileNotFoundError: If a directory is not a run or holds no answers.
        ValueError: If there are fewer than two runs, they have no question or cell in common,
            they differ in more than their training, or two use the same checkpoint.
    """
    if len({one.resolve() for one in run_dirs}) < len(run_dirs):
        raise InputError("a run is named twice; replicates are runs of several trainings")
    runs = [compared_runs([one], across=False) for one in run_dirs]
    raise_if_other_recipes([recipe_of(one) for one in run_dirs])
    found = replicated_cells([(run.cells, run.answers) for run in runs])
    if all(one.cell.is_baseline for one in found):
        raise InputError("the runs share no cell of a method or a control")
    names = told_apart([run.runs[0].group.facts.run_id for run in runs], run_dirs)
    storage = Storage.at(folder)
    storage.write(
        NUMBERS_FILE, fmt.Table.of([_numbers(one, names) for one in found]).csv().encode()
    )
    storage.write(FIGURE_FILE, charts.in_one_file(replicates_panels(found)).encode())
    several = len({one.cell.benchmark for one in found}) > 1
    sentences = [_sentence(level, several) for level in levels_of(found)]
    title = headline_title([one.cell for one in found]).capitalize()
    about = (
        f"{title} in %, by run, with mean and standard deviation over the runs. Differences in "
        "points are of scores averaged over the runs, paired by question; p by whole clips, "
        "corrected for the methods of the retention (Holm). *Better in*: runs whose own corrected "
        "comparison with their own best control shows it."
    )
    blind = any(one.versus_blind for one in found)
    if blind:
        about += (
            " *vs other question*: difference to the same method when it reads a question about "
            "another clip, with p corrected for the methods of the retention."
        )
    parts = [
        "# One recipe, several trainings",
        "\n".join(f"{number}. `{name}`" for number, name in enumerate(names, 1)),
        "\n".join(f"- {text}" for text in fmt.markdown_notes(sentences)),
        f"![{title} by run and method]({FIGURE_FILE})",
        replace(fmt.Table.of([_texts(one, blind) for one in found]), text_columns=2).markdown(),
        about,
        *fmt.markdown_notes(_notes(runs, found)),
    ]
    storage.write(TABLE_FILE, ("\n\n".join(parts) + "\n").encode())
    return folder / TABLE_FILE, sentences


def _texts(one: ReplicatedCell, blind: bool) -> dict[str, str]:
    """A row of the Markdown table: value per run, mean, spread, differences, verdicts.

    Args:
        one: The cell.
        blind: Whether the table has cells that read another clip's question.
    """
    full, against = one.versus_full, one.against
    row = {
        "benchmark": one.cell.benchmark,
        "method": one.cell.series,
        "asked %": f"{100 * one.cell.retention_requested:g}",
        "kept %": fmt.percent(one.kept),
        **{f"run {index}": fmt.percent(value) for index, value in enumerate(one.values, 1)},
        "mean": fmt.percent(one.mean),
        "SD": fmt.percent(one.spread, 2),
        "vs full": fmt.points(full.difference if full else None),
        "vs best control": fmt.difference_with_interval(
            Comparison(against.versus if against else None)
        ),
        "p (Holm)": fmt.corrected_p(against.p_value if against else None),
        "better in": fmt.DASH,
    }
    if one.control:
        row["better in"] = f"{one.verdicts.count('better')} of {len(one.cells)}"
    if blind:
        row["vs other question"] = fmt.difference_with_interval(Comparison(one.versus_blind))
        row["p (Holm) of that"] = fmt.corrected_p(one.blind_p_value)
    return row


def _numbers(one: ReplicatedCell, names: Sequence[str]) -> dict[str, object]:
    """A row of the CSV, unrounded; shares in [0, 1], differences in [-1, 1]."""
    cell, against = one.cell, one.against

    def ends(name: str, versus: ScoreDifference | None) -> dict[str, object]:
        figures = {f"{name}_{end}": getattr(versus, end, None) for end in ("low", "high")}
        return {f"difference_to_{name}": getattr(versus, "difference", None), **figures}

    return {
        "benchmark": cell.benchmark,
        "cell": cell.name,
        "method": cell.method,
        "metric": cell.metric,
        "retention_requested": cell.retention_requested,
        "equivalent_retention": one.kept,
        **dict(zip(names, one.values, strict=True)),
        "mean": one.mean,
        "sd": one.spread,
        **ends("full", one.versus_full),
        "best_control": one.control,
        **ends("control", against.versus if against else None),
        "p_holm": against.p_value if against else None,
        "verdict": against.verdict if against else "",
        **{f"verdict {name}": text for name, text in zip(names, one.verdicts, strict=True)},
        **ends("other_question", one.versus_blind),
        "p_holm_other_question": one.blind_p_value,
    }


def _notes(runs: Sequence[ComparedRuns], found: Sequence[ReplicatedCell]) -> list[str]:
    """Notes about cells and questions that not all runs have, and the notes of each run."""
    used = {(one.cell.benchmark, one.cell.name) for one in found}
    every = {(cell.benchmark, cell.name) for run in runs for cell in run.cells}
    missing = sorted(f"{name} on {benchmark}" for benchmark, name in every - used)
    notes = [f"Not in all runs and left out: {', '.join(missing)}."] if missing else []
    if any(len({cell.questions_digest for cell in one.cells}) > 1 for one in found):
        notes.append(
            "The runs were not asked the same questions: a run's own value counts all of its own, "
            "differences and p the questions that all were asked."
        )
    return [*notes, *dict.fromkeys(note for run in runs for note in run.notes)]


def _sentence(own: Sequence[ReplicatedCell], several: bool) -> str:
    """Summarise one retention; `several` if there are several benchmarks."""
    best = max(own, key=lambda one: one.mean)
    where = f" on {best.cell.benchmark}" if several else ""
    firsts = [max(own, key=lambda o: o.values[at]).cell.series for at in range(len(best.cells))]
    low, high = fmt.percent(min(best.values)), fmt.percent(max(best.values))
    alike = set(firsts) == {best.cell.series}
    parts = [
        f"At {100 * best.cell.retention_requested:g} %{where} {best.cell.series} is first on "
        f"average ({fmt.percent(best.mean)}, from {low} to {high})"
        + (" and in every run." if alike else f"; by run: {', '.join(firsts)}.")
    ]
    judged = [one for one in own if one.control]
    if judged:
        parts.append(f"Best control: {judged[0].control}.")
    for verdict in ("better", "worse"):
        counts = {one.cell.series: one.verdicts.count(verdict) for one in judged}
        named = [f"{name} ({n} of {len(best.cells)})" for name, n in counts.items() if n]
        parts += [f"{verdict.capitalize()}: {', '.join(named)}."] if named else []
    never = [one.cell.series for one in judged if not {"better", "worse"} & set(one.verdicts)]
    parts += [f"No difference shown in any run: {', '.join(never)}."] if never else []
    return " ".join(parts)
