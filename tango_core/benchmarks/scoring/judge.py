"""Score a reply: the option or span that it names, and whether that is right."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from tango_core.benchmarks.scoring import free_form, multiple_choice, spans
from tango_core.types import Question

# The IoU from which a span counts as right, where right and wrong are wanted.
RIGHT_FROM_IOU = 0.5


@dataclass(frozen=True)
class Judged:
    """One reply, read strictly.

    Attributes:
        readable: Whether it names an option or a span; true of every free-form reply.
        choice: Index of the option it names; `None` for none.
        correct: Whether it is right; `None` if nobody says what is. A span is right from an IoU of
            0.5 on.
        score: Score in [0, 1] of a question whose replies are more than right or wrong (IoU of
            spans); `None` for any other.
        choice_text: Option or span that it names, as text; `None` for none.
        answer_text: The right option or span, as text; `None` if it is not known.
        rule: Which of `multiple_choice.RULES` read the option; "benchmark" for a rule of its own,
            `None` where no option was read.
    """

    readable: bool
    choice: int | None
    correct: bool | None
    score: float | None
    choice_text: str | None
    answer_text: str | None
    rule: str | None = None


def judge(
    reply: str | None, question: Question, read_choice: Callable[[str, Question], int | None]
) -> Judged:
    """Read a reply and compare it with the right answer.

    Args:
        reply: The model's text; `None` for a question that was never answered, which is wrong.
        question: What was asked.
        read_choice: `Protocol.read_choice` of the benchmark's protocol.
    """
    if question.span is not None:
        span = None if reply is None else spans.read_span(reply)
        score = 0.0 if span is None else spans.span_iou(span, question.span)
        return Judged(
            span is not None,
            None,
            score >= RIGHT_FROM_IOU,
            score,
            None if span is None else spans.span_text(span),
            spans.span_text(question.span),
        )
    if not question.choices:
        right = free_form.matches(reply or "", question) if question.accepted else None
        return Judged(True, None, right, None, None, None)
    choice = None if reply is None else read_choice(reply, question)
    return Judged(
        choice is not None,
        choice,
        None if question.answer is None else choice == question.answer,
        None,
        _option(question, choice),
        _option(question, question.answer),
        None if choice is None else _rule(reply or "", question, choice),
    )


def _rule(reply: str, question: Question, choice: int) -> str:
    """The general rule that reads the same option from the reply."""
    general = multiple_choice.read(reply, question.choices, letters_first=True)
    return general.rule if general.choice == choice else "benchmark"


def _option(question: Question, index: int | None) -> str | None:
    """The text of an option; `None` for no index."""
    return None if index is None else question.choices[index]
