"""Answers for the top of a report: the best method at each cost, differences, and problems."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from statistics import median

from jobs.report.formatting import Html, escaped, milliseconds, percent, points
from jobs.report.tables.cells import shared_parts
from jobs.results.cell_summary import CellSummary, RunSummary, metric_title
from jobs.results.comparisons import Answers, ControlledRetention, compare_answers
from jobs.results.quantities import are_ranked
from tango_core.compressors import CONTROLS
from tango_core.metrics import ACCURACY, Comparison
from tango_core.metrics.comparison import LEVEL, holm_adjusted

# Shares of kept tokens that differ from the requested one by more than this part of it are listed.
_OFF = 0.05


@dataclass(frozen=True)
class Overview:
    """Sentences as HTML.

    Attributes:
        best: Which method is best at which cost, one sentence per retention.
        differences: How it compares with others, one sentence per retention.
        wrong: What is wrong with the run; empty if nothing was found.
        unequal: Methods that kept more or fewer tokens than asked for.
    """

    best: Sequence[Html]
    differences: Sequence[Html]
    wrong: Sequence[Html]
    unequal: Sequence[str]


def overview(
    summary: RunSummary,
    cells: Sequence[CellSummary],
    notes: Sequence[str],
    *,
    answers: Answers | None = None,
    controlled: Sequence[ControlledRetention] = (),
) -> Overview:
    """Summarise one run or several for the top of the page.

    Args:
        summary: Totals.
        cells: The cells, compared with their baselines.
        notes: Sentences about problems that were found.
        answers: Returns the answers of the cell at an index, to compare the two best methods.
        controlled: Comparisons with the best control.
    """
    best, differences = [], []
    if are_ranked(cells):
        best = [_best("", cell) for cell in cells if cell.is_baseline and cell.headline][:1]
        for where, level in _levels(cells).items():
            first, *others = sorted(level, key=lambda at: -_value(cells[at]))
            best.append(_best(f"{where} of the tokens: ", cells[first]))
            compared = _compared(cells, first, others[:1] if answers else [], answers, controlled)
            if compared:
                differences.append(Html(f"{escaped(where)}: {compared}"))
    else:
        best.append(Html("Methods are not ranked, because too few replies could be read."))
    differences += map(escaped, _detectable(cells))
    unequal = dict.fromkeys(
        cell.series
        for cell in cells
        if cell.equivalent_retention is not None
        and abs(cell.equivalent_retention / cell.retention_requested - 1) > _OFF
    )
    wrong = [escaped(text) for text in [*_faults(summary), *notes]]
    return Overview(best, differences, wrong, list(unequal))


def _levels(cells: Sequence[CellSummary]) -> dict[str, list[int]]:
    """Indices of methods by benchmark and requested share; of controls if there is no method."""
    found: dict[str, list[int]] = {}
    parts = shared_parts(cells)
    pruned = [at for at, cell in enumerate(cells) if cell.headline and not cell.is_baseline]
    methods = [at for at in pruned if cells[at].method not in CONTROLS]
    for at in sorted(methods or pruned, key=lambda at: cells[at].retention_requested):
        where = f"{parts[at]}, " if parts[at] else ""
        found.setdefault(f"{where}{100 * cells[at].retention_requested:g} %", []).append(at)
    return found


def _value(cell: CellSummary) -> float:
    return cell.headline.value if cell.headline else 0.0


def _best(where: str, cell: CellSummary) -> Html:
    """A cell with its score and its cost."""
    what = "% right" if cell.metric == ACCURACY.name else f"% {metric_title(cell)}"
    name = cell.series if where else f"All tokens ({cell.series})"
    costs = [f"{percent(cell.equivalent_retention)} % kept"] if where else []
    if cell.first_token_ms is not None:
        costs.append(f"{milliseconds(cell.first_token_ms)} ms to the first token")
    figures = ", ".join([f"{percent(_value(cell))} {what}", *costs])
    return Html(f"{escaped(where)}<b>{escaped(name)}</b>, {escaped(figures)}")


def _compared(
    cells: Sequence[CellSummary],
    first: int,
    others: Sequence[int],
    answers: Answers | None,
    controlled: Sequence[ControlledRetention],
) -> str:
    """How a cell compares with the next method, with the best control and with `full`."""
    found: list[tuple[Comparison, float, str]] = []
    for other in others:
        versus = compare_answers(answers(first), answers(other)) if answers else None
        if versus:
            found.append((versus, versus.p_value, cells[other].series))
    for level in controlled:
        for method in level.methods:
            if method.cell is cells[first] and method.versus and method.p_value is not None:
                name = f"{level.control.series}, the best control"
                found.append((method.versus, method.p_value, name))
    full = cells[first].versus_full
    if full and full.paired:
        found.append((full.paired, full.paired.p_value, "full"))
    adjusted = holm_adjusted([p_value for _, p_value, _ in found])
    shown, open_ = (
        [
            _ahead(versus, name)
            for (versus, _, name), p in zip(found, adjusted, strict=True)
            if (p < LEVEL) is wanted
        ]
        for wanted in (True, False)
    )
    name = f"<b>{escaped(cells[first].series)}</b>"
    parts = [f"{name} is {'; '.join(shown)} (significant after Holm's correction)"] if shown else []
    parts += [f"no difference shown: {name} is {'; '.join(open_)}"] if open_ else []
    return "; ".join(parts)


def _ahead(versus: Comparison, other: str) -> Html:
    """A difference in words."""
    size = points(abs(versus.difference)).lstrip("+")
    which = "ahead of" if versus.difference > 0 else "behind"
    text = f"{size} points {which} {other}" if versus.difference else f"equal to {other}"
    return escaped(text)


def _faults(summary: RunSummary) -> list[str]:
    counts = summary.counts
    found = [summary.note] if summary.note else []
    if counts.num_failed:
        found.append(
            f"{counts.num_failed:,} answers failed, about {counts.num_failed_clips:,} of "
            f"{counts.num_clips:,} clips, and count as wrong."
        )
    if counts.num_damaged:
        found.append(f"Answers about damaged clips: {counts.num_damaged:,}.")
    return found


def _detectable(cells: Sequence[CellSummary]) -> list[str]:
    """A sentence about the smallest loss that the comparisons with `full` can show."""
    pairs = [cell.versus_full.paired for cell in cells if cell.versus_full]
    known = [one for one in pairs if one and one.detectable_difference]
    if not known:
        return []
    typical = median(one.detectable_difference or 0 for one in known)
    return [
        f"{max(one.num_questions for one in known):,} questions about "
        f"{max(one.num_clips for one in known):,} clips: a loss of less than about "
        f"{percent(typical, 0)} points can go unseen."
    ]
