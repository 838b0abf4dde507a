"""Comparisons with the best control: sentences and a table."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace

from jobs.report.formatting import DASH, Table, corrected_p, percent, points
from jobs.results.cell_summary import metric_title
from jobs.results.comparisons import AgainstControl, ControlledRetention
from tango_core.metrics import ACCURACY

CONTROLS_CAPTION = (
    "Difference to the best control at the retention in points, paired by question; p by "
    "whole clips, corrected for the methods of the retention (Holm). The last two columns are "
    "accuracies on questions that all tokens answer rightly, where the control fails and where "
    "it does not, with the number of questions. A control called full with a setting of the "
    "model has all tokens of a smaller input, as a share of those of the methods' input."
)
_VERDICTS = {"better": "Better than it", "worse": "Worse", "open": "No difference shown"}


def control_sentences(found: Sequence[ControlledRetention]) -> list[str]:
    """Comparisons with the best control, one sentence per retention."""
    several = len({one.control.benchmark for one in found}) > 1
    return [_sentence(one, several) for one in found]


def controls_table(found: Iterable[ControlledRetention]) -> Table:
    """Table of all comparisons with controls, with accuracy by VTC-Bench's filter, in %."""
    rows = []
    for one in found:
        for method in one.methods:
            parts, control = method.filtered, one.control
            hard, easy = (
                (
                    f"{percent(parts.hard)} ({parts.num_hard})",
                    f"{percent(parts.easy)} ({parts.num_easy})",
                )
                if parts
                else (DASH, DASH)
            )
            rows.append(
                {
                    "benchmark": control.benchmark,
                    "asked %": f"{100 * one.retention:g}",
                    "best control": control.series,
                    "kept %": percent(control.equivalent_retention),
                    "method": method.cell.series,
                    "kept % ": percent(method.cell.equivalent_retention),
                    "difference": _difference(method),
                    "p (Holm)": corrected_p(method.p_value),
                    "where the control fails": hard,
                    "where it does not": easy,
                }
            )
    return replace(Table.of(rows), text_columns=5)


def _sentence(one: ControlledRetention, several: bool) -> str:
    """Summarise the comparisons of one retention in a sentence."""
    where = f" on {one.control.benchmark}" if several else ""
    if size := one.methods[0].cell.input_size:
        where += f" with {size}"
    control = one.control
    value = control.headline.value if control.headline else None
    what = "right" if control.metric == ACCURACY.name else metric_title(control)
    # The share of a smaller input is one of the methods' input.
    of_what = " of the whole input" if control.is_baseline else ""
    parts = [
        f"At {100 * one.retention:g} %{where} the best control is {control.series} "
        f"({percent(value)} % {what} with {percent(control.equivalent_retention)} % of the "
        f"tokens{of_what})."
    ]
    for verdict, text in _VERDICTS.items():
        own = [_compared(method) for method in one.methods if method.verdict == verdict]
        parts += [f"{text}: {', '.join(own)}."] if own else []
    return " ".join(parts)


def _compared(method: AgainstControl) -> str:
    """A method with its difference to the control, and its tokens where they are not equal."""
    kept = ""
    if method.equal_tokens is False:
        kept = f" with {percent(method.cell.equivalent_retention)} % of the tokens"
    return f"{method.cell.series} ({_difference(method)}{kept})"


def _difference(method: AgainstControl) -> str:
    """The difference to the control in points."""
    return points(method.versus.difference if method.versus else None)
