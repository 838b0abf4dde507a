"""Read time spans from replies, and their IoU with the annotated span."""

from __future__ import annotations

import re

from tango_core.benchmarks.scoring.multiple_choice import answer_part

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
