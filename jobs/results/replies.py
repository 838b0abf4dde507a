"""How replies were read: unread replies, and reasons of failures."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from jobs.results.cell_summary import CellSummary


# Share of unread replies from which tables have a column for it, and from which methods are not
# ranked.
SHOWN_FROM = 0.01
NOT_RANKED_FROM = 0.2


def are_ranked(cells: Iterable[CellSummary]) -> bool:
    """Whether enough replies could be read for methods to be ranked."""
    return all(cell.counts.unread_share <= NOT_RANKED_FROM for cell in cells)


def unread_notes(cells: Sequence[CellSummary]) -> list[str]:
    """A warning if many replies of a cell name no option, with two of them."""
    found = [cell for cell in cells if cell.counts.unread_share > NOT_RANKED_FROM]
    if not found:
        return []
    worst = max(found, key=lambda cell: cell.counts.unread_share)
    examples = " and ".join(f'"{text}"' for text in worst.readings.unread_examples)
    return [
        f"In {len(found)} of {len(cells)} cells more than {NOT_RANKED_FROM:.0%} of the replies "
        f"name no option and count as wrong ({worst.counts.unread_share:.0%} in {worst.name}"
        f"{f', such as {examples}' if examples else ''}). Methods are not ranked; check that the "
        "model follows the benchmark's prompt."
    ]


def rule_notes(cells: Iterable[CellSummary]) -> list[str]:
    """By which rules the replies of all cells were read, where more than one was needed."""
    total: Counter[str] = Counter()
    for cell in cells:
        total.update(cell.readings.rules)
    if len(total) < 2:
        return []
    counts = ", ".join(f"{count:,} by {name}" for name, count in total.most_common())
    return [f"Replies were read by these rules: {counts}."]


MAX_REASONS = 50


@dataclass(frozen=True)
class FailureReason:
    """One reason.

    Attributes:
        status: Status of the answers.
        error: The reason in one line; "" if there is none.
        clips: Clips that it concerned.
        questions: Answers that it concerned.
        examples: The first clips.
    """

    status: str
    error: str
    clips: int
    questions: int
    examples: tuple[str, ...]


@dataclass(frozen=True)
class FailureList:
    """The reasons that a summary lists.

    Attributes:
        reasons: Those with the most clips, at most `MAX_REASONS`.
        num_more: How many others there are.
    """

    reasons: tuple[FailureReason, ...] = ()
    num_more: int = 0

    @classmethod
    def of(cls, reasons: Sequence[FailureReason]) -> FailureList:
        """The first reasons of all, which are in order."""
        return cls(tuple(reasons[:MAX_REASONS]), max(0, len(reasons) - MAX_REASONS))
