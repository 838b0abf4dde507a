"""Score a reply: the option, the words or the span of time that it names, and whether it is right.

Free-form replies are compared with accepted answers by words. Capitals, the form of Unicode
characters, and punctuation around a word do not count; a sign before a number, and "+", "#" and "%"
behind a word, do ("-5", "C++", "50%"). Every Chinese or Japanese character is a word of its own,
since nothing parts words there.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Callable
from dataclasses import dataclass

from tango_core.benchmarks.scoring import multiple_choice
from tango_core.benchmarks.scoring.multiple_choice import answer_part
from tango_core.types import Question

MATCHES = ("exact", "contains")

_UNSPACED = re.compile(r"[\u3040-\u30ff\u3400-\u9fff\uf900-\ufaff]")
# All apostrophes are the same one, and a long dash parts words as a space does.
_ALIKE = {0x2018: "'", 0x2019: "'", 0x02BC: "'", 0x2014: " "}
_BEFORE = re.compile(r"^(?:(?![-+]?\.?\d)[\W_])+")
_BEHIND = re.compile(r"(?:[^\w+#%]|_)+$")


def matches(reply: str, question: Question) -> bool:
    """Whether a reply is an accepted answer (`"exact"`), or holds one (`"contains"`).

    An answer is held where its words occur in the reply one after the other: "a red cup" holds
    "red" and "red cup", "3.5 seconds" does not hold "5". So does "not red" hold "red".

    Args:
        reply: The model's text; empty matches nothing.
        question: A question with `accepted` answers.
    """
    given = words(reply)
    accepted = [answer for answer in map(words, question.accepted) if answer]
    if question.match == "exact":
        return given in accepted
    return any(
        given[at : at + len(answer)] == answer for answer in accepted for at in range(len(given))
    )


def words(text: str) -> list[str]:
    """Split a text into the words that are compared; what is only punctuation is none."""
    folded = unicodedata.normalize("NFKC", text).casefold().translate(_ALIKE)
    parts = _UNSPACED.sub(r" \g<0> ", folded).split()
    return [word for part in parts if (word := _BEHIND.sub("", _BEFORE.sub("", part)))]


Span = tuple[float, float]

# "24.3", "0:24", "1:02:03.5", also as "<24.3 seconds>" or "24.3s"; no part of a longer number or
# word ("1e2", "1m5s"), and nothing in other units.
_NUMBER = r"((?:\d+:)?\d{1,2}:\d{2}(?:\.\d+)?|\d+(?:\.\d+)?)(?!\.?\d|:\d)"
_UNIT = (
    r"(?:\s*(?:seconds?|secs?|s)\b\.?)?"
    r"(?!(?!s)[a-z]|\s*(?:%|(?:percent|frames?|m|min|mins|minutes?|h|hours?|ms|milliseconds?)\b))"
)
# The comma of "24,3" and of "1,024.5" is inside a number, but for that of a pair in brackets.
_POINT = rf"[<\"'*]*(?<![\w.])(?<!\d:)(?<!\d,){_NUMBER}(?!,\d){_UNIT}[>\"'*]*"
_ONE_OF_PAIR = rf"[<\"'*]*(?<![\w.])(?<!\d:){_NUMBER}{_UNIT}[>\"'*]*"
_DASH = r"\s*[-\u2010-\u2015~]\s*"
# "2024-10-11", "1 - 2 - 3" and "1 to 2 to 3" are no spans.
_MORE = rf"(?:{_DASH}|\s+to\s+)"
_LONGER_BEFORE, _LONGER_AFTER = re.compile(rf"\d{_MORE}$"), re.compile(rf"{_MORE}\d")
_FORMS = tuple(
    re.compile(form, re.IGNORECASE)
    for form in (
        # "24.3 - 30.4", "from 24.3 seconds to 30.4 seconds", "between 0:24 and 0:30"
        rf"{_POINT}\s*(?:[-\u2010-\u2015~]|\bto\b|\buntil\b|\btill\b)\s*{_POINT}",
        rf"\bbetween\s+{_POINT}\s+and\s+{_POINT}",
        # "Start time: 24.3, end time: 30.4", "starts at 0:24 and ends at 0:30", {"start": ..}
        rf"\b(?:start|begin)[a-z_]*[^\d\n]{{0,24}}?{_POINT}\D{{0,24}}?\bend[a-z_]*[^\d\n]{{0,24}}?{_POINT}",
        # [24.3, 30.4]
        rf"[\[(]\s*{_ONE_OF_PAIR}\s*,\s*{_ONE_OF_PAIR}\s*[\])]",
    )
)


def read_span(reply: str) -> Span | None:
    """Read the one span of time that a reply names, in seconds, the earlier end first.

    Understood are two times with a dash, "to", "until" or "between .. and" between them, a start
    and an end by these words, and a pair in brackets; times are seconds or clock times, with or
    without a unit. Other numbers in the reply do not count, minutes and numbers with commas among
    them. The same span twice is one span.

    Returns:
        `None` if the reply names no span, or several that differ; text of a reasoning model before
        its answer (`multiple_choice.answer_part`) names none.
    """
    reply = answer_part(reply)
    found: set[Span] = set()
    for form in _FORMS:
        for match in form.finditer(reply):
            if _LONGER_BEFORE.search(reply[: match.start()]) or _LONGER_AFTER.match(
                reply, match.end()
            ):
                return None
            first, second = map(seconds_of, match.groups())
            found.add((min(first, second), max(first, second)))
    return found.pop() if len(found) == 1 else None


def seconds_of(time: str) -> float:
    """A number of seconds, or a clock time such as "1:02:03.5", in seconds."""
    seconds = 0.0
    for part in time.split(":"):
        seconds = 60 * seconds + float(part)
    return seconds


def span_iou(one: Span, other: Span) -> float:
    """Length that two spans share over the length they cover together, in [0, 1].

    It is 0 for spans that do not meet and where both have no length.

    Args:
        one: (start, end) in seconds, the start not after the end.
        other: The same.
    """
    shared = min(one[1], other[1]) - max(one[0], other[0])
    covered = max(one[1], other[1]) - min(one[0], other[0])
    return max(0.0, shared) / covered if covered > 0 else 0.0


def span_text(span: Span) -> str:
    """A span for tables of replies."""
    return f"{span[0]:g} to {span[1]:g} s"


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
    choice: int | None = None
    correct: bool | None = None
    score: float | None = None
    choice_text: str | None = None
    answer_text: str | None = None
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
        span = read_span(reply or "")
        score = 0.0 if span is None else span_iou(span, question.span)
        return Judged(
            readable=span is not None,
            correct=score >= RIGHT_FROM_IOU,
            score=score,
            choice_text=None if span is None else span_text(span),
            answer_text=span_text(question.span),
        )
    if not question.choices:
        return Judged(True, correct=matches(reply or "", question) if question.accepted else None)
    choice = None if reply is None else read_choice(reply, question)
    return Judged(
        readable=choice is not None,
        choice=choice,
        correct=None if question.answer is None else choice == question.answer,
        choice_text=None if choice is None else question.choices[choice],
        answer_text=None if question.answer is None else question.choices[question.answer],
        rule=None if choice is None else _rule(reply or "", question, choice),
    )


def _rule(reply: str, question: Question, choice: int) -> str:
    """The general rule that reads the same option from the reply."""
    general = multiple_choice.read(reply, question.choices, letters_first=True)
    return general.rule if general.choice == choice else "benchmark"
