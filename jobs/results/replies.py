"""How replies were read, which name no option, and why answers failed."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa

from jobs.results.answer_columns import FAILED_BIT, UNPARSED, AnswerColumns, by_code
from jobs.results.quantities import Readings, from_plain

if TYPE_CHECKING:
    from jobs.results.cell_summary import CellSummary


# Share of unread replies from which tables have a column for it, and from which methods are not
# ranked.
SHOWN_FROM = 0.01
NOT_RANKED_FROM = 0.2
_EXAMPLES = 2
_SEARCHED = 100  # unread replies of a part of the answers among which examples are looked for
_EXAMPLE_LENGTH = 40


class ReadingCounts:
    """Collects `Readings` of the cells of a run, from its answers part by part."""

    def __init__(self) -> None:
        self._rules: dict[tuple[str, str], Counter[str]] = {}
        self._examples: dict[tuple[str, str], list[str]] = {}

    def add(self, columns: AnswerColumns) -> None:
        """Take some answers."""
        codes, rules = columns.texts("reading_rule")
        unread = (columns.bits & UNPARSED) > 0
        for number, name in enumerate(columns.cell_names):
            own = columns.cells == number
            found = self._rules.setdefault(name, Counter())
            for code, count in zip(*np.unique(codes[own], return_counts=True), strict=True):
                if code >= 0 and rules[code]:
                    found[rules[code]] += int(count)
            examples = self._examples.setdefault(name, [])
            if len(examples) == _EXAMPLES:
                continue
            wanted = np.flatnonzero(own & unread)[:_SEARCHED]
            texts = (
                columns.table["text"].take(wanted) if len(wanted) else pa.array([])
            ).to_pylist()
            distinct = dict.fromkeys((*examples, *(_shortened(text or "") for text in texts)))
            examples[:] = list(distinct)[:_EXAMPLES]

    def of(self, benchmark: str, cell: str) -> Readings:
        """What was found for a cell."""
        rules = self._rules.get((benchmark, cell), Counter())
        examples = self._examples.get((benchmark, cell), ())
        return Readings(dict(rules.most_common()), tuple(examples))


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


def _shortened(text: str) -> str:
    line = " ".join(text.split())
    return line if len(line) <= _EXAMPLE_LENGTH else f"{line[: _EXAMPLE_LENGTH - 1]}\u2026"


MAX_REASONS = 50
_NAMED_CLIPS = 5


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


class FailureReasons:
    """Collects the reasons of answers that failed."""

    def __init__(self) -> None:
        self._found: dict[tuple[str, str], FailureReason] = {}

    def add(self, columns: AnswerColumns) -> None:
        """Take some answers, whose clips come in no other table."""
        rows = ((columns.bits & FAILED_BIT) > 0).nonzero()[0]
        if not len(rows):
            return
        statuses, status_names = columns.texts("status")
        errors, error_names = columns.texts("error")
        both = statuses * (len(error_names) + 1) + errors + 1
        for code, own in by_code(both, rows):
            status, error = divmod(code, len(error_names) + 1)
            clips = columns.clips[own]
            first = clips[np.sort(np.unique(clips, return_index=True)[1])].tolist()
            reason = FailureReason(
                status=status_names[status],
                error=error_names[error - 1] if error else "",
                clips=len(first),
                questions=len(own),
                examples=tuple(columns.clip_names[clip][1] for clip in first[:_NAMED_CLIPS]),
            )
            self._add(reason)

    def merge(self, others: Iterable[FailureReasons]) -> FailureReasons:
        """These and others together, of runs whose clips count anew."""
        total = FailureReasons()
        for part in (self, *others):
            for reason in part._found.values():
                total._add(reason)
        return total

    def listed(self) -> list[FailureReason]:
        """All reasons, the one with the most clips first."""
        return sorted(self._found.values(), key=lambda reason: (-reason.clips, reason.error))

    def _add(self, reason: FailureReason) -> None:
        """Add to what is known of the same reason."""
        key = (reason.status, reason.error)
        known = self._found.get(key)
        if known is not None:
            reason = FailureReason(
                *key,
                clips=known.clips + reason.clips,
                questions=known.questions + reason.questions,
                examples=(*known.examples, *reason.examples)[:_NAMED_CLIPS],
            )
        self._found[key] = reason


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
    def of(cls, found: FailureReasons) -> FailureList:
        """The first reasons of all that were found."""
        listed = found.listed()
        return cls(tuple(listed[:MAX_REASONS]), max(0, len(listed) - MAX_REASONS))

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> FailureList:
        """Read what a summary holds."""
        reasons = (
            from_plain(FailureReason, one, examples=tuple(one.get("examples") or ()))
            for one in data.get("reasons") or ()
        )
        return cls(tuple(reasons), data.get("num_more") or 0)
