"""Why answers failed: each reason once, with what it concerned."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from jobs.results.answer_columns import FAILED_BIT, AnswerColumns, by_code
from jobs.results.plain import from_plain

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
