"""Spans of time as lmms-eval's tasks read them in replies, faults included.

Source: EvolvingLMMs-Lab/lmms-eval 75571cfe, `lmms_eval/tasks/charades_sta/utils.py` and
`lmms_eval/tasks/timelens/utils.py`. Our own reading is `scoring.spans`.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from itertools import chain

from tango_core.benchmarks.scoring.spans import Span, seconds_of

_EXAMPLE = "a specific example is : 20.8 - 30.0 seconds"
# All other words that lmms-eval looks for contain one of these.
_KEYWORDS = ("start", "end", "happen")
_CLOCK = r"\b(\d{1,2}:\d{2}(?::\d{2})?)"
_CLOCK_RANGE = re.compile(rf"{_CLOCK}\s*[\u2013-]\s*(\d{{1,2}}:\d{{2}}(?::\d{{2}})?)\b")
_RANGE = re.compile(r"(\d+(?:\.\d+)?)\s*[\u2013-]\s*(\d+(?:\.\d+)?)")
_RANGE_WITH_UNIT = re.compile(r"(\d+(?:\.\d+)?)\s*s?\s*[\u2013-]\s*(\d+(?:\.\d+)?)\s*s?")
_CLOCK_ALONE = re.compile(rf"{_CLOCK}\b")
_NUMBER = re.compile(r"\b(\d+(?:\.\d+)?)\b")

_LENS_CLOCK = re.compile(r"\b(\d{1,2}:\d{2}:\d{2}(?:\.\d+)?|\d{1,2}:\d{2}(?:\.\d+)?)\b")
_LENS_RANGES = (
    re.compile(r"(\d+\.?\d*)\s*-\s*(\d+\.?\d*)"),
    re.compile(r"(\d+\.?\d*)\s+to\s+(\d+\.?\d*)"),
)
_LENS_NUMBER = re.compile(r"\b\d+\.?\d*\b")


def charades_span(reply: str) -> Span | None:
    """The span that the task `temporal_grounding_charades` reads, the earlier end first.

    Every "to" is a dash for it, and only sentences with "start", "end" or "happen" count if there
    are any. "24.3 seconds to 30.4 seconds" and a start and an end on one line are not read; of
    several spans the first one counts.
    """
    text = reply.lower().replace(_EXAMPLE, "").replace("to", "-")
    sentences = re.split(r"[!?\n]", text)
    sentences = [s for s in sentences if any(word in s for word in _KEYWORDS)] or sentences
    found = (
        _first_ranges(_CLOCK_RANGE, sentences)
        or _first_ranges(_RANGE, sentences)
        or _paired(chain.from_iterable(map(_CLOCK_ALONE.findall, sentences)))
        or _paired(chain.from_iterable(_NUMBER.findall(s)[:1] for s in sentences))
        or _first_ranges(_RANGE_WITH_UNIT, sentences)
    )
    if not found:
        return None
    start, end = found[0]
    return (start, end) if end > start else (end, start)


def timelens_spans(reply: str) -> list[Span]:
    """The spans that the task `timelens_charades` reads, the first of which counts there.

    Their ends are not sorted, and "24.3s - 30.4s" is read as 24 to 30.
    """
    text = reply.lower()
    clocks = _paired(_LENS_CLOCK.findall(text))
    if clocks:
        return clocks
    for form in _LENS_RANGES:
        if ranges := form.findall(text):
            return [(float(start), float(end)) for start, end in ranges]
    return _paired(_LENS_NUMBER.findall(text))


def _first_ranges(form: re.Pattern[str], sentences: Sequence[str]) -> list[Span]:
    """The ranges of the first sentence that has any."""
    for sentence in sentences:
        if ranges := form.findall(sentence):
            return [(seconds_of(start), seconds_of(end)) for start, end in ranges]
    return []


def _paired(times: Iterable[str]) -> list[Span]:
    """Two times after each other as a span; a last one without a partner counts for nothing."""
    seconds = [seconds_of(time) for time in times]
    return list(zip(seconds[::2], seconds[1::2], strict=False))
