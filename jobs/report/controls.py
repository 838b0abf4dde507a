"""Which methods beat the best control: a sentence per retention, and the table behind it."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from pathlib import Path

from jobs.report.formatting import DASH, markdown_table, percent, points
from jobs.results.against_controls import (
    AgainstControl,
    ControlledRetention,
    RightWrong,
    against_controls,
)
from jobs.results.answer_columns import PRESENT, RIGHT, SCORED
from jobs.results.cell_summary import CellSummary
from jobs.results.outcomes import Outcomes
from jobs.results.reduction import Reduction
from tango_core.compressors import CONTROLS

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


def has_controls(cells: Sequence[CellSummary]) -> bool:
    """Whether a control is among the cells."""
    return any(cell.method in CONTROLS for cell in cells)


def control_notes(
    cells: Sequence[CellSummary], answers_of: Callable[[int], Reduction], folder: Path
) -> list[str]:
    """A sentence per retention with a control; nothing where no control was run.

    Args:
        cells: Of one run or of several.
        answers_of: The answers of the run that the cell at an index is of.
        folder: Receives `controls.md` if there is one.
    """
    found = against_controls(cells, lambda index: right_wrong(answers_of(index), cells[index]))
    several = len({one.control.benchmark for one in found}) > 1
    sentences = [_sentence(one, several) for one in found]
    if found:
        text = "\n\n".join([*sentences, controls_markdown(found)])
        (folder / "controls.md").write_text(text, encoding="utf-8")
    return sentences


def right_wrong(answers: Reduction, cell: CellSummary) -> RightWrong:
    """What the answers of one cell say, questions without a known answer left out."""
    outcomes = answers.outcomes.get(cell.benchmark) or Outcomes(cell.benchmark, profile=False)
    bits = outcomes.bits(cell.name)
    scored = ((bits & PRESENT) > 0) & ((bits & SCORED) > 0)
    return RightWrong(outcomes.keys[scored], outcomes.clip[scored], (bits[scored] & RIGHT) > 0)


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
            DASH if method.p_value is None else _p(method.p_value),
            *_filtered(method),
        )
        for one in found
        for method in one.methods
    ]
    return markdown_table(HEADER, rows, text_columns=5) + (
        "\n\nDifference to the best control at the retention in points, paired by question; p by "
        "whole clips, corrected for the methods of the retention (Holm). The last two columns are "
        "accuracies on questions that all tokens answer rightly, where the control fails and where "
        "it does not, with the number of questions.\n"
    )


def _sentence(one: ControlledRetention, several: bool) -> str:
    """What the comparisons of one retention say."""
    where = f" on {one.control.benchmark}" if several else ""
    value = one.control.accuracy.value if one.control.accuracy else None
    parts = [
        f"At {100 * one.retention:g} %{where} the best control is {one.control.series} "
        f"({percent(value)} % right with {percent(one.control.equivalent_retention)} % of the "
        "tokens)."
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


def _difference(method: AgainstControl) -> str:
    """Points with a sign."""
    return points(method.versus.difference if method.versus else None)


def _p(value: float) -> str:
    """A corrected p value."""
    return "<0.001" if value < 0.001 else f"{value:.3f}"


def _filtered(method: AgainstControl) -> tuple[str, str]:
    """Accuracy where the control fails, and where it does not."""
    filtered = method.filtered
    if filtered is None:
        return DASH, DASH
    return (
        f"{percent(filtered.hard)} ({filtered.num_hard})",
        f"{percent(filtered.easy)} ({filtered.num_easy})",
    )
