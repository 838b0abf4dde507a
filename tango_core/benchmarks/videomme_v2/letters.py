"""The letter that both harnesses read in a reply: the first capital from A to H."""

from __future__ import annotations

from tango_core.benchmarks.protocols.lmms_eval import first_capital
from tango_core.benchmarks.scoring.multiple_choice import letter_of
from tango_core.types import Question

# Deleted wherever they stand, in this order.
_DELETED = (
    "The best answer is",
    "The correct answer is",
    "The answer is",
    "The answer",
    "The best option is",
    "The correct option is",
    "Final Answer:",
    "Best answer:",
    "Best option:",
    "Answer:",
    "Option:",
)


def harness_letter(reply: str) -> str:
    """The first capital from A to H after known phrases are deleted, or "".

    "He holds a book" is H, and "Based on the video C" is B.
    """
    return first_capital(reply, "ABCDEFGH", _DELETED)


def score(reply: str, question: Question) -> float | None:
    """1 if that letter is the right one, else 0; `None` if the answer is not known."""
    if question.answer is None:
        return None
    return float(harness_letter(reply) == letter_of(question.answer))
