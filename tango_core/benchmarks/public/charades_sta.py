"""Charades-STA: temporal grounding of sentences in videos of about 30 seconds.

Gao et al., "TALL: Temporal Activity Localization via Language Query", ICCV 2017,
https://arxiv.org/abs/1705.02101: 3,720 sentences about 1,334 videos of Charades in the test split.
The headline is the mean IoU; R@1 at IoU 0.3, 0.5 and 0.7 stand beside it. Prompts and rules:
lmms-eval 75571cfe, `lmms_eval/tasks/charades_sta` and, for `lmms_eval_timelens`,
`lmms_eval/tasks/timelens`. VLMEvalKit has no such data set: under its name the question is put in
the same words, and there is no harness's score.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from itertools import chain
from pathlib import Path
from typing import Any, ClassVar

from tango_core.benchmarks import annotated, tables
from tango_core.benchmarks.protocols import protocol
from tango_core.benchmarks.protocols.protocol import PromptTemplate, in_versions, of_lmms_eval
from tango_core.benchmarks.releases import Release
from tango_core.benchmarks.scoring.spans import Span, seconds_of, span_iou
from tango_core.errors import InputError
from tango_core.local_files import read_text
from tango_core.metrics import MEAN_IOU, RECALL_03, RECALL_05, RECALL_07
from tango_core.types import Question

_SAME = ("video", "caption", "timestamp")
# Group of a question that a later row of the release repeats word for word.
REPEATED = "repeated"

# The misspelt word is the original's. A sentence's own full stop stays before the template's.
PROMPT = PromptTemplate(
    "Please find the visual event described by a sentence in the video, determining its starting "
    "and ending times. The format should be: 'The event happens in the start time - end time'. For "
    "example, The event 'person turn a light on' happens in the 24.3 - 30.4 seonds. Now I will "
    "give you the textual sentence: {question}. Please return its start time and end time."
)
TIMELENS = PromptTemplate(
    "Please find the visual event described by the sentence '{question}', determining its starting "
    "and ending times. The format should be: 'The event happens in <start time> - <end time> "
    "seconds'."
)
_METRICS = tuple(f"charades_sta_{name}" for name in ("IOU@3", "IOU@5", "IOU@7", "mIOU"))

# How lmms-eval's tasks read spans of time, faults included. Our own reading is `scoring.spans`.
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
        if ranges := _first_ranges(form, [text]):
            return ranges
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


def score(reply: str, question: Question) -> float | None:
    """IoU of the span that the task reads, 0 for none; `None` for a row that a later one repeats.

    Results are kept by video, sentence and times there, so that the last of equal rows is left.
    """
    return _score(charades_span(reply), question)


def score_timelens(reply: str, question: Question) -> float | None:
    """The same by the reading of `timelens_charades`."""
    return _score(next(iter(timelens_spans(reply)), None), question)


def _score(span: Span | None, question: Question) -> float | None:
    if question.span is None or REPEATED in question.groups:
        return None
    return 0.0 if span is None else span_iou(span, question.span)


def written_times(record: annotated.Record) -> str:
    """Start and end as lmms-eval's table has them, as text."""
    value = record.row["timestamp"]
    return value if isinstance(value, str) else str([float(time) for time in value])


def sample_metrics(record: annotated.Record, reply: str) -> dict[str, Any]:
    """The reply under video, sentence and times, once per metric that lmms-eval computes later."""
    key = f"{record.row['video']}>>>{record.question.text}>>>{written_times(record)}"
    return {name: {key: reply} for name in _METRICS}


SPANS: dict[str, Any] = {"read_choice": protocol.read_reply, "max_new_tokens": 50}


class CharadesSTABenchmark(annotated.AnnotatedBenchmark):
    """Charades-STA as its authors' text file or as lmms-eval's table."""

    name = "charades_sta"
    title = "Charades-STA"
    layout = "charades_sta_test.txt or data/test-*.parquet, and Charades_v1_480/<video>.mp4"
    annotations: ClassVar[Sequence[str]] = (
        *("charades_sta_test.txt", "charades_sta/charades_sta_test.txt"),
        *("data/test-*.parquet", "test-*.parquet"),
        *("charades_sta_test.json", "charades_sta_test.jsonl"),
    )
    folders: ClassVar[Sequence[str]] = ("Charades_v1_480", "Charades_v1")
    splits: ClassVar = {"test": 3720}
    protocols: ClassVar = {
        **of_lmms_eval(PROMPT, score, **SPANS),
        **in_versions("lmms_eval_timelens", TIMELENS, score_timelens, **SPANS),
    }
    metrics = (MEAN_IOU, RECALL_03, RECALL_05, RECALL_07)
    unlisted_groups = (REPEATED,)
    lmms_eval_samples = annotated.LmmsEvalSamples(
        "temporal_grounding_charades",
        sample_metrics,
        target=written_times,
        # Older versions log them as `submission`.
        key_in=annotated.first_key_of(*_METRICS, "submission"),
    )
    releases: ClassVar[Sequence[Release]] = (
        Release(
            repository="lmms-eval/charades_sta",
            licence="research only, by the terms of Charades",
            annotations=("*.parquet",),
            videos=("*.zip", "*.tar*"),
        ),
    )

    def _rows(self, path: Path) -> list[tables.Row]:
        rows = self._sentences(path)
        # lmms-eval identifies a row by these columns, and counts the last of equal ones.
        keys = [tuple(str(row.get(name)) for name in _SAME) for row in rows]
        last = {key: at for at, key in enumerate(keys)}
        return [
            {**row, REPEATED: last[key] != at}
            for at, (key, row) in enumerate(zip(keys, rows, strict=True))
        ]

    def _sentences(self, path: Path) -> list[tables.Row]:
        """Rows with the columns `video`, `caption` and `timestamp`."""
        return _lines(path) if path.suffix == ".txt" else tables.read_rows(path)

    def _file(self, row: tables.Row) -> str:
        if "line" in row:
            raise InputError(f"must be 'VIDEO start end##sentence', got {row['line'][:60]!r}")
        return super()._file(row)

    def _id(self, row: tables.Row, video: str, number: int) -> str:
        return self._numbered(f"{video}-")

    def _question(self, row: tables.Row) -> tuple[str, tuple[str, ...]]:
        return tables.text_of(row, "caption"), ()

    def _answer(self, row: tables.Row, choices: Sequence[str]) -> int | None:
        return None

    def _groups(self, row: tables.Row) -> dict[str, str]:
        return {REPEATED: "yes"} if row[REPEATED] else {}

    def _span(self, row: tables.Row) -> Span:
        start, end = sorted(_times(row))
        return start, end


def _lines(path: Path) -> list[tables.Row]:
    """Rows of the authors' text file; a line of another form is a row with `line` alone."""
    rows: list[tables.Row] = []
    for line in filter(str.strip, read_text(path).splitlines()):
        # "3MSZA 24.3 30.4##person turn a light on."
        found = re.fullmatch(r"(\S+)\s+(\S+)\s+(\S+?)\s*##(.*)", line.strip())
        if found is None:
            rows.append({"line": line})
            continue
        video, start, end, caption = found.groups()
        times = [_number(start), _number(end)]
        rows.append({"video": f"{video}.mp4", "caption": caption.strip(), "timestamp": times})
    return rows


def _number(text: str) -> float | str:
    """A number, or the string for `number_of` to report."""
    try:
        return float(text)
    except ValueError:
        return text


def _times(row: tables.Row) -> Span:
    """Start and end of a row in seconds.

    Raises:
        ValueError: If they are not two numbers of at least 0.
    """
    times = tables.list_of(row, "timestamp")
    if len(times) != 2:
        raise InputError(f"timestamp must be [start, end], got {row['timestamp']!r}")
    named = dict(zip(("start", "end"), times, strict=True))
    start, end = (tables.number_of(named, name) for name in named)
    if min(start, end) < 0:
        raise InputError(f"timestamp must not be negative, got {row['timestamp']!r}")
    return start, end
