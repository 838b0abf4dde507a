"""Which methods beat the best control: a sentence per retention, and the table behind it."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from pathlib import Path

import numpy as np
import pandas as pd

from jobs.report.formatting import DASH, markdown_table, percent, points
from jobs.results.against_controls import (
    AgainstControl,
    ControlledRetention,
    RightWrong,
    against_controls,
)
from jobs.results.cell_summary import CellSummary

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


def control_notes(
    cells: Sequence[CellSummary], rows_of: Callable[[int], pd.DataFrame], folder: Path
) -> list[str]:
    """A sentence per retention with a control; nothing where no control was run.

    Args:
        cells: Of one run or of several.
        rows_of: Answers of the cell at an index.
        folder: Receives `controls.md` if there is one.
    """
    found = against_controls(cells, lambda index: right_wrong(rows_of(index)))
    several = len({one.control.benchmark for one in found}) > 1
    sentences = [_sentence(one, several) for one in found]
    if found:
        text = "\n\n".join([*sentences, controls_markdown(found)])
        (folder / "controls.md").write_text(text, encoding="utf-8")
    return sentences


def rows_of_run(
    cells: Sequence[CellSummary], answers: pd.DataFrame
) -> Callable[[int], pd.DataFrame]:
    """Answers of the cell at an index, out of those of its run."""
    parts = dict(list(answers.groupby(["benchmark", "cell"], sort=False)))
    return lambda index: parts[cells[index].benchmark, cells[index].name]


def right_wrong(rows: pd.DataFrame) -> RightWrong:
    """What the answers of one cell say, questions without a known answer left out."""
    scored = rows[rows["answer"].notna() | rows["correct"].notna()]
    clips = scored["video_id"].astype(str).to_numpy(dtype=str)
    numbers = scored["question_id"].astype(str).to_numpy(dtype=str)
    keys = np.array([f"{clip}\0{number}" for clip, number in zip(clips, numbers, strict=True)], str)
    right = scored["correct"].eq(True).to_numpy(dtype=bool)
    return RightWrong(keys, clips, right)


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
