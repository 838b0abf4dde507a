"""What travels between the stages: plain dictionaries with these Arrow schemas, one row per clip.

A row carries its own failure: every stage passes a row whose `status` is not `ok` on untouched, and
the last one turns it into one answer row per question. Large arrays travel as bytes with their
shape beside them.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa

from pipeline.redaction import redacted
from pipeline.storage.urls import is_url
from tango_core.printable import printable
from tango_core.types import ClipSource, Question, Subtitles, VideoItem

Row = dict[str, Any]

_CLIP = [
    ("benchmark", pa.string()),
    ("video_id", pa.string()),
    ("path", pa.string()),
    ("clip_start", pa.float64()),
    ("clip_end", pa.float64()),
    ("clip_key", pa.string()),
    ("source_fingerprint", pa.string()),
    ("source_version", pa.string()),
    ("questions", pa.string()),
    ("subtitles", pa.string()),
    ("missing", pa.list_(pa.string())),
    ("encode", pa.list_(pa.string())),
    ("stored", pa.list_(pa.string())),
    ("status", pa.string()),
    ("error", pa.string()),
    ("store_fault", pa.string()),
]
_DECODED = [
    ("decode_video_ms", pa.float64()),
    ("decoder", pa.string()),
    ("warnings", pa.list_(pa.string())),
    ("damage", pa.list_(pa.string())),
]
_ENCODED = [
    ("encode_ms", pa.float64()),
    ("compress_ms", pa.string()),
    ("compress_errors", pa.string()),
]

CLIP = pa.schema(_CLIP)
DECODED = pa.schema(
    [
        *_CLIP,
        *_DECODED,
        ("pixels", pa.large_binary()),
        ("pixels_shape", pa.list_(pa.int64())),
        ("frame_times", pa.list_(pa.float64())),
        ("duration_s", pa.float64()),
        ("frame_height", pa.int64()),
    ]
)
ENCODED = pa.schema([*_CLIP, *_DECODED, *_ENCODED])

ANSWER = pa.schema(
    [
        ("benchmark", pa.string()),
        ("video_id", pa.string()),
        ("question_id", pa.string()),
        ("cell", pa.string()),
        ("method", pa.string()),
        ("retention", pa.float64()),
        ("status", pa.string()),
        ("error", pa.string()),
        ("text", pa.string()),
        ("choice", pa.int64()),
        ("answer", pa.int64()),
        ("correct", pa.bool_()),
        ("score", pa.float64()),
        ("answer_text", pa.string()),
        ("choice_text", pa.string()),
        ("reading_rule", pa.string()),
        ("harness_score", pa.float64()),
        ("tokens_total", pa.int64()),
        ("tokens_kept", pa.int64()),
        ("tokens_with_newlines", pa.int64()),
        ("clip_text_tokens", pa.int64()),
        ("prompt_tokens", pa.int64()),
        ("new_tokens", pa.int64()),
        ("decode_video_ms", pa.float64()),
        ("encode_ms", pa.float64()),
        ("compress_ms", pa.float64()),
        ("segment_ms", pa.float64()),
        ("select_ms", pa.float64()),
        ("merge_ms", pa.float64()),
        ("cache_read_ms", pa.float64()),
        ("prefill_ms", pa.float64()),
        ("ttft_ms", pa.float64()),
        ("decode_ms", pa.float64()),
        ("peak_gib", pa.float64()),
        ("peak_of", pa.string()),
        ("cache", pa.string()),
        ("groups", pa.string()),
        ("prompt_digest", pa.string()),
        ("frames_digest", pa.string()),
        ("kept_digest", pa.string()),
    ]
)
RESULT = pa.schema(
    [
        ("benchmark", pa.string()),
        ("video_id", pa.string()),
        ("path", pa.string()),
        ("status", pa.string()),
        ("error", pa.string()),
        ("store_fault", pa.string()),
        ("lost_entry", pa.bool_()),
        ("decode_video_ms", pa.float64()),
        ("encode_ms", pa.float64()),
        ("num_misses", pa.int64()),
        ("num_computed", pa.int64()),
        ("warnings", pa.list_(pa.string())),
        ("answers", pa.list_(pa.struct(list(ANSWER)))),
    ]
)


def clip_row(
    benchmark: str, item: VideoItem, key: str, fingerprint: str, version: str | None = None
) -> Row:
    """The first row of a clip, before the caches have been looked at.

    Then `missing` names the token caches that lack the clip, `stored` the parts of it that the
    feature cache holds, and `encode` what the encoder must be asked for: tokens, signals. Nothing
    is decoded for a clip of which nothing is to be encoded.

    `source_version` is set where the fingerprint is of the bytes: a fingerprint without
    `hash_content`, which a worker can compare without reading them.

    The path is made absolute: a worker of a running cluster has a working directory of its own.
    """
    start, end = item.clip if item.clip is not None else (None, None)
    return {
        "benchmark": benchmark,
        "video_id": item.video_id,
        "path": item.path if is_url(item.path) else str(Path(item.path).absolute()),
        "clip_start": start,
        "clip_end": end,
        "clip_key": key,
        "source_fingerprint": fingerprint,
        "source_version": version,
        "questions": _pack(item.questions),
        "subtitles": None if item.subtitles is None else json.dumps(item.subtitles.text),
        "missing": [],
        "encode": [],
        "stored": [],
        "status": "ok",
        "error": None,
        "store_fault": None,
    }


def result(row: Mapping[str, Any], answers: Sequence[Row]) -> Row:
    """What the driver keeps of a clip: a row of `RESULT`.

    One with a `lost_entry` failed because a cache does not hold any more what the plan of the job
    counted on; see `plan.with_lost_entries_again`.
    """
    return {
        **{name: row.get(name) for name in RESULT.names},
        "num_misses": len(row["missing"]),
        "num_computed": len(json.loads(row.get("compress_ms") or "{}")),
        "warnings": list(row.get("warnings") or ()),
        "answers": list(answers),
    }


def bounds(row: Mapping[str, Any]) -> tuple[float, float] | None:
    """The clip's bounds in seconds, or `None` for the whole file."""
    return None if row["clip_start"] is None else (row["clip_start"], row["clip_end"])


def source_of(row: Mapping[str, Any]) -> ClipSource | None:
    """What is known of a clip as it is in its file; a table may write an unknown number as NaN."""
    duration, height = row.get("duration_s"), row.get("frame_height")
    if duration is None or height is None or math.isnan(duration) or math.isnan(height):
        return None
    return ClipSource(float(duration), int(height))


def source_columns(source: ClipSource | None) -> dict[str, Any]:
    """The columns that `source_of` reads."""
    return {
        "duration_s": source.duration_s if source else None,
        "frame_height": source.frame_height if source else None,
    }


def questions_of(row: Mapping[str, Any]) -> tuple[Question, ...]:
    """The questions of a clip's row."""
    return tuple(
        Question(
            **{
                **q,
                "choices": tuple(q["choices"]),
                "accepted": tuple(q.get("accepted", ())),
                "span": tuple(q["span"]) if "span" in q else None,
            }
        )
        for q in json.loads(row["questions"])
    )


def subtitles_of(row: Mapping[str, Any]) -> Subtitles | None:
    """The subtitles of a clip's row; `None` if its questions are put without."""
    packed = row.get("subtitles")
    return None if packed is None else Subtitles(json.loads(packed))


def failed(row: Mapping[str, Any], status: str, error: object) -> Row:
    """The same row with a failure and a one-line reason."""
    return {**row, "status": status, "error": one_line(str(error) or type(error).__name__)}


def one_line(reason: str) -> str:
    """A reason as every table can hold it: one line, printable, without secrets, not too long."""
    return printable(redacted(" ".join(reason.split())))[:2000]


def to_table(rows: Iterable[Mapping[str, Any]], schema: pa.Schema) -> pa.Table:
    """Rows as an Arrow table; keys outside the schema are dropped, absent ones become null."""
    return pa.Table.from_pylist(list(rows), schema=schema)


def _pack(questions: Sequence[Question]) -> str:
    """Questions as JSON: one string column travels and prints better than nested lists."""
    return json.dumps(
        [
            {
                "id": q.id,
                "text": q.text,
                "choices": list(q.choices),
                "answer": q.answer,
                "groups": dict(q.groups),
                **({"accepted": list(q.accepted), "match": q.match} if q.accepted else {}),
                **({"span": list(q.span)} if q.span is not None else {}),
            }
            for q in questions
        ],
        ensure_ascii=False,
    )
