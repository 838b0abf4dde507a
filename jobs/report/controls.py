"""Which methods beat the best control: a sentence per retention, and the table behind it."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import cache
from pathlib import Path

from jobs.report.formatting import DASH, Table, corrected_p, percent, points
from jobs.results.cell_summary import CellSummary, metric_title
from jobs.results.comparisons import (
    AgainstControl,
    Answers,
    ControlledRetention,
    RightWrong,
    against_controls,
)
from jobs.results.facts import JobFacts
from jobs.results.outcomes import Outcomes
from jobs.results.reduction import Reduction, reduce_runs
from tango_core.metrics import ACCURACY

HEADER = (
    "benchmark",
    "asked %",
    "best control",
    "kept %",
    "method",
    "kept % ",
    "difference",
    "p (Holm)",
    "where the control fails",
    "where it does not",
)


def control_notes(cells: Sequence[CellSummary], answers: Answers, folder: Path) -> list[str]:
    """A sentence per retention with a control; nothing where no control was run.

    Args:
        cells: Of one run or of several.
        answers: What the cell at an index answered; asked for only where there is a control.
        folder: Receives `controls.md` if there is one.
    """
    found = against_controls(cells, answers)
    several = len({one.control.benchmark for one in found}) > 1
    sentences = [_sentence(one, several) for one in found]
    if found:
        text = "\n\n".join([*sentences, controls_markdown(found)])
        (folder / "controls.md").write_text(text, encoding="utf-8")
    return sentences


def answers_of_run(run_dir: Path, cells: Sequence[CellSummary]) -> Answers:
    """What the cells of a run answered; the run is read when the first one is asked for."""

    @cache
    def reduction() -> Reduction:
        return reduce_runs([run_dir], JobFacts.load(run_dir).mode)

    return lambda index: right_wrong(reduction(), cells[index])


def right_wrong(reduction: Reduction, cell: CellSummary) -> RightWrong:
    """What a cell answered, without what does not count in the headline."""
    outcomes = reduction.outcomes.get(cell.benchmark) or Outcomes(cell.benchmark, profile=False)
    headline = outcomes.metrics[0]
    counts, values = headline.count(outcomes.questions(cell.name))
    return RightWrong(
        outcomes.keys[counts], outcomes.clip[counts], values[counts], headline.right_wrong
    )


def controls_markdown(found: Iterable[ControlledRetention]) -> str:
    """All comparisons, with accuracy by VTC-Bench's filter, in %."""
    rows = [
        (
            one.control.benchmark,
            f"{100 * one.retention:g}",
            one.control.series,
            percent(one.control.equivalent_retention),
            method.cell.series,
            percent(method.cell.equivalent_retention),
            _difference(method),
            corrected_p(method.p_value),
            *_filtered(method),
        )
        for one in found
        for method in one.methods
    ]
    return Table(HEADER, rows, text_columns=5).markdown() + (
        "\n\nDifference to the best control at the retention in points, paired by question; p by "
        "whole clips, corrected for the methods of the retention (Holm). The last two columns are "
        "accuracies on questions that all tokens answer rightly, where the control fails and where "
        "it does not, with the number of questions. A control called full with a setting of the "
        "model has all tokens of a smaller input, as a share of those of the methods' input.\n"
    )


def _sentence(one: ControlledRetention, several: bool) -> str:
    """What the comparisons of one retention say."""
    where = f" on {one.control.benchmark}" if several else ""
    if size := one.methods[0].cell.input_size:
        where += f" with {size}"
    control = one.control
    value = control.headline.value if control.headline else None
    what = "right" if control.metric == ACCURACY.name else metric_title(control)
    parts = [
        f"At {100 * one.retention:g} %{where} the best control is {one.control.series} "
        f"({percent(value)} % {what} with {percent(one.control.equivalent_retention)} % of the "
        f"tokens{_of_what(one.control)})."
    ]
    for verdict, words in (
        ("better", "Better than it"),
        ("worse", "Worse"),
        ("open", "No difference shown"),
    ):
        members = [method for method in one.methods if method.verdict == verdict]
        if members:
            listed = ", ".join(f"{m.cell.series} ({_difference(m)})" for m in members)
            parts.append(f"{words}: {listed}.")
    unequal = [method for method in one.methods if method.equal_tokens is False]
    if unequal:
        listed = ", ".join(
            f"{m.cell.series} ({percent(m.cell.equivalent_retention)} %)" for m in unequal
        )
        parts.append(f"Not asked at truly equal tokens: {listed}.")
    return " ".join(parts)


def _of_what(control: CellSummary) -> str:
    """Whose tokens the share of a control is of, where they are not those of its own run."""
    return " of the whole input" if control.is_baseline else ""


def _difference(method: AgainstControl) -> str:
    """Points with a sign."""
    return points(method.versus.difference if method.versus else None)


def _filtered(method: AgainstControl) -> tuple[str, str]:
    """Accuracy where the control fails, and where it does not."""
    filtered = method.filtered
    if filtered is None:
        return DASH, DASH
    return (
        f"{percent(filtered.hard)} ({filtered.num_hard})",
        f"{percent(filtered.easy)} ({filtered.num_easy})",
    )
