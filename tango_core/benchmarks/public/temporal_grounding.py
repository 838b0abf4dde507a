"""Charades-STA and ActivityNet Captions: when does the event of a sentence happen in a video?

Charades-STA: Gao et al., "TALL: Temporal Activity Localization via Language Query", ICCV 2017,
https://arxiv.org/abs/1705.02101. 3,720 sentences about 1,334 videos of Charades of about 30 seconds
in the test split.

ActivityNet Captions: Krishna et al., "Dense-Captioning Events in Videos", ICCV 2017,
https://arxiv.org/abs/1705.00754. Videos of two minutes on average. The second annotation of the
validation videos (`val_2.json`, 17,031 sentences) is the usual test set, the first one
(`val_1.json`, 17,505) the usual validation set. lmms-eval has no task with them, but one with the
sentences and times of TimeLens about the same videos (4,500, split `timelens`): its words and its
rules are `lmms_eval` here, whatever the split. `lmms_eval_charades` has the words of its
Charades-STA task, without a harness's score.

The headline is the mean IoU; R@1 at IoU 0.3, 0.5 and 0.7 stand beside it. Prompts and rules:
lmms-eval 75571cfe, `lmms_eval/tasks/charades_sta` and, for `lmms_eval_timelens` and ActivityNet
Captions, `lmms_eval/tasks/timelens`. VLMEvalKit has no such data set: its protocol uses the same
prompts here, and no score of a harness is computed.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Sequence
from dataclasses import replace
from itertools import chain
from pathlib import Path
from typing import Any, ClassVar

from tango_core.benchmarks import annotated, tables
from tango_core.benchmarks.protocols import protocol
from tango_core.benchmarks.protocols.protocol import PromptTemplate
from tango_core.benchmarks.releases import Release
from tango_core.benchmarks.scoring.judge import Span, seconds_of, span_iou
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
_METRICS = ("IOU@3", "IOU@5", "IOU@7", "mIOU")

# How lmms-eval's tasks read spans of time, faults included. Our own reading is `judge.read_span`.
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
    """Start and end as lmms-eval's table of Charades-STA has them, as text."""
    value = record.row["timestamp"]
    return value if isinstance(value, str) else str([float(time) for time in value])


def charades_metrics(record: annotated.Record, reply: str) -> dict[str, Any]:
    """The reply under video, sentence and times, once per metric that lmms-eval computes later."""
    key = f"{record.row['video']}>>>{record.question.text}>>>{written_times(record)}"
    return {f"charades_sta_{name}": {key: reply} for name in _METRICS}


def activitynet_metrics(record: annotated.Record, reply: str) -> dict[str, Any]:
    """The same of the task with the sentences of TimeLens.

    Raises:
        ValueError: For a sentence that the task does not have.
    """
    row = record.row
    if "span" not in row:
        raise InputError("lmms-eval asks the questions of benchmark.split timelens alone")
    key = f"{row['video_path']}>>>{row['query']}>>>{row['span']}"
    return {f"timelens_{name}": {key: reply} for name in _METRICS}


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
        **protocol.of_lmms_eval(PROMPT, score, **SPANS),
        **protocol.in_versions("lmms_eval_timelens", TIMELENS, score_timelens, **SPANS),
    }
    metrics = (MEAN_IOU, RECALL_03, RECALL_05, RECALL_07)
    unlisted_groups = (REPEATED,)
    lmms_eval_samples = annotated.LmmsEvalSamples(
        "temporal_grounding_charades",
        charades_metrics,
        target=written_times,
        # Older versions log them as `submission`.
        key_in=annotated.first_key_of(*(f"charades_sta_{one}" for one in _METRICS), "submission"),
    )
    releases: ClassVar[Sequence[Release]] = (
        Release(
            repository="lmms-eval/charades_sta",
            licence="research only, by the terms of Charades",
            videos=("*.zip", "*.tar*"),
        ),
    )

    def _rows(self, path: Path) -> list[tables.Row]:
        rows = _lines(path) if path.suffix == ".txt" else super()._rows(path)
        # lmms-eval identifies a row by these columns, and counts the last of equal ones.
        keys = [tuple(str(row.get(name)) for name in _SAME) for row in rows]
        last = {key: at for at, key in enumerate(keys)}
        return [{**row, REPEATED: last[keys[at]] != at} for at, row in enumerate(rows)]

    def _file(self, row: tables.Row) -> str:
        if "line" in row:
            raise InputError(f"must be 'VIDEO start end##sentence', got {row['line'][:60]!r}")
        return super()._file(row)

    def _id(self, row: tables.Row, video: str, number: int) -> str:
        return self._numbered(f"{video}-")

    def _asked(self, row: tables.Row, question_id: str) -> Question:
        groups = {REPEATED: "yes"} if row[REPEATED] else {}
        text = tables.text_of(row, "caption")
        return Question(question_id, text, groups=groups, span=_times(row))


def _lines(path: Path) -> list[tables.Row]:
    """Rows of the authors' text file; a line of another form is a row with `line` alone."""
    rows: list[tables.Row] = []
    for line in filter(str.strip, read_text(path).splitlines()):
        # "3MSZA 24.3 30.4##person turn a light on."
        found = re.fullmatch(r"(\S+)\s+(-?\d+\.?\d*)\s+(-?\d+\.?\d*)\s*##(.*)", line.strip())
        if found is None:
            rows.append({"line": line})
            continue
        video, start, end, caption = found.groups()
        times = [float(start), float(end)]
        rows.append({"video": f"{video}.mp4", "caption": caption.strip(), "timestamp": times})
    return rows


def _times(row: tables.Row) -> Span:
    """Start and end of a row in seconds, the earlier one first.

    Raises:
        ValueError: If they are not two numbers of at least 0.
    """
    times = tables.list_of(row, "timestamp")
    if len(times) != 2:
        raise InputError(f"timestamp must be [start, end], got {row['timestamp']!r}")
    named = dict(zip(("start", "end"), times, strict=True))
    first, second = sorted(tables.number_of(named, name) for name in named)
    if first < 0:
        raise InputError(f"timestamp must not be negative, got {row['timestamp']!r}")
    return first, second


_TIMELENS = protocol.of_lmms_eval(TIMELENS, score_timelens, **SPANS)
_CHARADES = replace(_TIMELENS["lmms_eval"], render=PROMPT)


class ActivityNetBenchmark(CharadesSTABenchmark):
    """ActivityNet Captions as its authors' JSON files, or the table of TimeLens."""

    name = "activitynet_captions"
    title = "ActivityNet Captions"
    layout = "val_2.json, val_1.json or data/activitynet-*.parquet, and videos/v_<id>.mp4"
    annotations = ("val_2.json", "captions/val_2.json")
    split_annotations: ClassVar = {
        "val_1": ("val_1.json", "captions/val_1.json"),
        "timelens": ("data/activitynet-*.parquet", "activitynet-*.parquet"),
    }
    folders = (".", "videos", "all_test", "activitynet", "Activity_Videos")
    length_column = "duration"
    splits: ClassVar = {"test": 17031, "val_1": 17505, "timelens": 4500}
    protocols: ClassVar = {**_TIMELENS, **protocol.unscored("lmms_eval_charades", _CHARADES)}
    lmms_eval_samples = annotated.LmmsEvalSamples(
        "timelens_activitynet",
        activitynet_metrics,
        target=lambda record: str(record.row.get("span")),
        key_in=annotated.first_key_of(*(f"timelens_{name}" for name in _METRICS)),
    )
    releases = (
        Release(
            repository="kcz358/timelens",
            licence="research only, by the terms of ActivityNet",
            annotations=("*activitynet*.parquet",),
            notes=(
                "it holds the questions of the split timelens; val_1.json and val_2.json are on "
                "the page of ActivityNet Captions: put them beside it",
            ),
        ),
    )

    def _rows_of(self, content: Any) -> list[tables.Row]:
        """Rows with the columns `video`, `caption` and `timestamp`."""
        if isinstance(content, list):
            return [
                {**row, "video": row.get("video_path"), "caption": row.get("query")}
                | {"timestamp": _first_span(row)}
                for row in content
            ]
        return [
            {"video": video, "caption": sentence.strip(), "timestamp": times}
            | {"duration": own["duration"]}
            for video, own in content.items()
            for sentence, times in zip(own["sentences"], own["timestamps"], strict=True)
        ]


def _first_span(row: tables.Row) -> object:
    """The first [start, end] in a row of TimeLens, or what it holds instead."""
    try:
        return json.loads(str(row.get("span")))[0]
    except (ValueError, TypeError, IndexError, KeyError):
        return row.get("span")
