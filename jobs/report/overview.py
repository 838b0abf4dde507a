"""Three answers for the top of a report: what is best at which cost, how sure, what is wrong."""

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
from tango_core.metrics.comparison import LEVEL

# Shares of kept tokens that differ from the requested one by more than this part of it are listed.
_OFF = 0.05
_OF = " of the tokens"


@dataclass(frozen=True)
class Overview:
    """Sentences as HTML.

    Attributes:
        best: Which method is best at which cost, one sentence per retention.
        sure: By how much, and how sure that is, one sentence per retention.
        wrong: What is wrong with the run, and what its numbers cannot show.
    """

    best: Sequence[Html]
    sure: Sequence[Html]
    wrong: Sequence[Html]


def overview(
    summary: RunSummary,
    cells: Sequence[CellSummary],
    notes: Sequence[str],
    *,
    answers: Answers | None = None,
    controlled: Sequence[ControlledRetention] = (),
) -> Overview:
    """Answer the three questions for one run or for several.

    Args:
        summary: Totals.
        cells: The cells, compared with their baselines.
        notes: Sentences about problems that were found.
        answers: Returns the answers of the cell at an index, to compare the two best methods.
        controlled: Comparisons with the best control.
    """
    best, sure = [], []
    if are_ranked(cells):
        for where, level in _levels(cells).items():
            first, *others = sorted(level, key=lambda at: -_value(cells[at]))
            best.append(_best(where, cells[first]))
            sentence = _sure(cells, first, others, answers, controlled)
            if sentence:
                sure.append(Html(f"{escaped(where.removesuffix(_OF))}: {sentence}"))
        full = [_best("", cell) for cell in cells if cell.is_baseline and cell.headline]
        best = [*full[:1], *best]
    else:
        best.append(Html("Methods are not ranked, because too few replies could be read."))
    return Overview(best, sure, [escaped(text) for text in _problems(summary, cells, notes)])


def _levels(cells: Sequence[CellSummary]) -> dict[str, list[int]]:
    """Indices of methods by benchmark and requested share; of controls if there is no method."""
    found: dict[str, list[int]] = {}
    parts = shared_parts(cells)
    there = any(cell.method not in CONTROLS and not cell.is_baseline for cell in cells)
    order = sorted(range(len(cells)), key=lambda at: cells[at].retention_requested)
    for at in order:
        cell = cells[at]
        if cell.is_baseline or cell.headline is None or (there and cell.method in CONTROLS):
            continue
        where = f"{parts[at]}, " if parts[at] else ""
        found.setdefault(f"{where}{100 * cell.retention_requested:g} %{_OF}", []).append(at)
    return found


def _value(cell: CellSummary) -> float:
    return cell.headline.value if cell.headline else 0.0


def _best(where: str, cell: CellSummary) -> Html:
    """A cell with its score and its cost."""
    what = "% right" if cell.metric == ACCURACY.name else f"% {metric_title(cell)}"
    kept = f", {percent(cell.equivalent_retention)} % kept" if where else ""
    time = (
        ""
        if cell.first_token_ms is None
        else f", {milliseconds(cell.first_token_ms)} ms to the first token"
    )
    name = cell.series if where else f"All tokens ({cell.series})"
    return Html(
        f"{escaped(where)}{': ' if where else ''}<b>{escaped(name)}</b>, {percent(_value(cell))} "
        f"{escaped(what)}{kept}{time}"
    )


def _sure(
    cells: Sequence[CellSummary],
    first: int,
    others: Sequence[int],
    answers: Answers | None,
    controlled: Sequence[ControlledRetention],
) -> str:
    """How a cell compares with the next method, with the best control and with all tokens."""
    found = []
    if others and answers:
        versus = compare_answers(answers(first), answers(others[0]))
        if versus:
            found.append((versus, versus.p_value, cells[others[0]].series))
    for level in controlled:
        for method in level.methods:
            if method.cell is cells[first] and method.versus and method.p_value is not None:
                name = f"{level.control.series}, the best control"
                found.append((method.versus, method.p_value, name))
    full = cells[first].versus_full
    if full and full.paired:
        found.append((full.paired, full.paired.p_value, "all tokens"))
    sure = [_ahead(versus, other) for versus, p, other in found if p < LEVEL]
    open_ = [_ahead(versus, other) for versus, p, other in found if p >= LEVEL]
    parts = [f"sure (p &lt; {LEVEL}): <b>{', '.join(sure)}</b>" if sure else ""]
    parts.append(f"may be chance: {', '.join(open_)}" if open_ else "")
    return "; ".join(filter(None, parts))


def _ahead(versus: Comparison, other: str) -> Html:
    """A difference in words."""
    size = points(abs(versus.difference)).lstrip("+")
    which = "ahead of" if versus.difference > 0 else "behind"
    return escaped(f"{size} {which} {other}" if versus.difference else f"equal to {other}")


def _problems(summary: RunSummary, cells: Sequence[CellSummary], notes: Sequence[str]) -> list[str]:
    counts = summary.counts
    found = [summary.note] if summary.note else []
    if counts.num_failed:
        found.append(
            f"{counts.num_failed:,} answers failed, about {counts.num_failed_clips:,} of "
            f"{counts.num_clips:,} clips, and count as wrong."
        )
    if counts.num_damaged:
        one = counts.num_damaged == 1
        answers = "answer is about a damaged clip" if one else "answers are about damaged clips"
        found.append(f"{counts.num_damaged:,} {answers}.")
    found += notes
    pairs = [cell.versus_full.paired for cell in cells if cell.versus_full]
    known = [one for one in pairs if one and one.detectable_difference]
    if known:
        found.append(
            f"{max(one.num_questions for one in known):,} questions about "
            f"{max(one.num_clips for one in known):,} clips: a loss of less than about "
            f"{percent(median(one.detectable_difference or 0 for one in known), 0)} points can go "
            "unseen."
        )
    unequal = dict.fromkeys(
        cell.series
        for cell in cells
        if cell.equivalent_retention is not None
        and abs(cell.equivalent_retention - cell.retention_requested)
        > _OFF * cell.retention_requested
    )
    if unequal:
        found.append(f"Kept more or fewer tokens than asked for: {', '.join(unequal)}.")
    return found or ["Nothing was found: every clip was read and every reply understood."]
