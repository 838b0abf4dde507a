"""Records that pass between the stages: `Clip` and `Result`.

A failed clip has a `status` other than `ok`: every stage passes it on unchanged, and the last one
turns it into one failed answer row per question. Arrays are stored as bytes with their shape in
another column. The Arrow schemas are those of Ray's blocks and of the answer files.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
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


@dataclass(frozen=True, kw_only=True)
class Clip:
    """A clip that passes through the stages; a row of `CLIP`, `DECODED` or `ENCODED`.

    Attributes:
        benchmark: Name of the benchmark.
        video_id: Id of the video in the benchmark.
        path: Absolute path or URL; workers may run in another directory.
        clip_start: Start in seconds; `None` together with `clip_end` for the whole file.
        clip_end: End in seconds.
        clip_key: Key of the clip in all caches; empty if the file cannot be read.
        source_fingerprint: Fingerprint of the file.
        source_version: With `hash_content`, also the fingerprint by size and time, which a worker
            can check without reading the file; else `None`.
        questions: JSON; see `questions_of`.
        subtitles: JSON; `None` if prompts contain no subtitles.
        missing: Names of the token caches that do not hold the clip.
        encode: Tokens and signals to encode; if empty, the clip is not decoded.
        stored: Parts of the clip in the feature cache.
        status: `"ok"`, or the failure status of a stage.
        error: One-line reason of the failure.
        store_fault: Storage error that a stage met.
        decode_video_ms: Time to decode the clip.
        decoder: Decoder that was used.
        warnings: Warnings of the decoder.
        damage: Reasons why the frames may differ from the undamaged video.
        pixels: Bytes of the (F, h, w, 3) uint8 frames, row-major.
        pixels_shape: Shape of the frames.
        frame_times: Seconds.
        duration_s: See `ClipSource`.
        frame_height: See `ClipSource`.
        encode_ms: Time of the vision encoder.
        compress_ms: JSON; cache name -> time of its method, `None` if that comes later.
        compress_errors: JSON; cache name -> why its method failed.
        profile: JSON; what `ProfileCompression` measured.
    """

    benchmark: str
    video_id: str
    path: str = ""
    clip_start: float | None = None
    clip_end: float | None = None
    clip_key: str = ""
    source_fingerprint: str = ""
    source_version: str | None = None
    questions: str = "[]"
    subtitles: str | None = None
    missing: Sequence[str] = ()
    encode: Sequence[str] = ()
    stored: Sequence[str] | None = ()
    status: str = "ok"
    error: str | None = None
    store_fault: str | None = None
    decode_video_ms: float | None = None
    decoder: str | None = None
    warnings: Sequence[str] | None = None
    damage: Sequence[str] | None = None
    pixels: bytes | None = None
    pixels_shape: Sequence[int] | None = None
    frame_times: Sequence[float] | None = None
    duration_s: float | None = None
    frame_height: int | None = None
    encode_ms: float | None = None
    compress_ms: str | None = None
    compress_errors: str | None = None
    profile: str | None = None

    @property
    def name(self) -> tuple[str, str]:
        """Benchmark and video id."""
        return self.benchmark, self.video_id

    @property
    def bounds(self) -> tuple[float, float] | None:
        """Start and end in seconds; `None` for the whole file."""
        return bounds(vars(self))

    def failed(self, status: str, error: object) -> Clip:
        """Copy of the clip with a failure status and a one-line reason."""
        return replace(self, status=status, error=one_line(str(error) or type(error).__name__))


@dataclass(frozen=True, kw_only=True)
class Result:
    """Result of a clip for the driver; a row of `RESULT`.

    Attributes not listed here have the same meaning as in `Clip`.

    Attributes:
        num_misses: Number of caches that did not hold the clip.
        num_computed: Number of token sets computed for it.
        lost_entry: Whether it failed because a cache entry that the plan relied on was removed or
            damaged; see `run.complete`.
        answers: Rows of `ANSWER`.
    """

    benchmark: str
    video_id: str
    path: str = ""
    status: str = "ok"
    error: str | None = None
    store_fault: str | None = None
    lost_entry: bool | None = False
    decode_video_ms: float | None = None
    encode_ms: float | None = None
    num_misses: int = 0
    num_computed: int = 0
    warnings: Sequence[str] = ()
    answers: list[Row] = field(default_factory=list)

    @property
    def name(self) -> tuple[str, str]:
        """Benchmark and video id."""
        return self.benchmark, self.video_id


def clip_of(
    benchmark: str,
    item: VideoItem,
    key: str = "",
    fingerprint: str = "",
    version: str | None = None,
) -> Clip:
    """Build a clip without any information from the caches."""
    start, end = item.clip if item.clip is not None else (None, None)
    return Clip(
        benchmark=benchmark,
        video_id=item.video_id,
        path=item.path if is_url(item.path) else str(Path(item.path).absolute()),
        clip_start=start,
        clip_end=end,
        clip_key=key,
        source_fingerprint=fingerprint,
        source_version=version,
        questions=_pack(item.questions),
        subtitles=None if item.subtitles is None else json.dumps(item.subtitles.text),
    )


def result_of(
    clip: Clip,
    answers: Sequence[Row],
    *,
    store_fault: str | None = None,
    lost_entry: bool = False,
) -> Result:
    """Build the result of a finished clip."""
    return Result(
        benchmark=clip.benchmark,
        video_id=clip.video_id,
        path=clip.path,
        status=clip.status,
        error=clip.error,
        store_fault=store_fault or clip.store_fault,
        lost_entry=lost_entry,
        decode_video_ms=clip.decode_video_ms,
        encode_ms=clip.encode_ms,
        num_misses=len(clip.missing),
        num_computed=len(json.loads(clip.compress_ms or "{}")),
        warnings=list(clip.warnings or ()),
        answers=list(answers),
    )


def bounds(row: Mapping[str, Any]) -> tuple[float, float] | None:
    """The clip's bounds in seconds, or `None` for the whole file."""
    return None if row["clip_start"] is None else (row["clip_start"], row["clip_end"])


def source_of(row: Mapping[str, Any]) -> ClipSource | None:
    """Duration and frame height of the original file; `None` if unknown (null or NaN)."""
    duration, height = row.get("duration_s"), row.get("frame_height")
    if duration is None or height is None or math.isnan(duration) or math.isnan(height):
        return None
    return ClipSource(float(duration), int(height))


def source_columns(source: ClipSource | None) -> dict[str, Any]:
    """Columns for `source_of`."""
    return {
        "duration_s": source.duration_s if source else None,
        "frame_height": source.frame_height if source else None,
    }


def questions_of(clip: Clip) -> tuple[Question, ...]:
    """The questions about a clip."""
    return tuple(
        Question(
            **{
                **q,
                "choices": tuple(q["choices"]),
                "accepted": tuple(q.get("accepted", ())),
                "span": tuple(q["span"]) if "span" in q else None,
            }
        )
        for q in json.loads(clip.questions)
    )


def subtitles_of(clip: Clip) -> Subtitles | None:
    """The subtitles of a clip; `None` if prompts contain no subtitles."""
    return None if clip.subtitles is None else Subtitles(json.loads(clip.subtitles))


def one_line(reason: str) -> str:
    """Convert a message for a table: one printable line, without secrets, truncated."""
    return printable(redacted(" ".join(reason.split())))[:2000]


def to_table(rows: Iterable[Mapping[str, Any] | Clip | Result], schema: pa.Schema) -> pa.Table:
    """Convert rows to an Arrow table; extra keys are dropped, absent ones become null."""
    plain = [vars(row) if isinstance(row, Clip | Result) else row for row in rows]
    return pa.Table.from_pylist(plain, schema=schema)


def clips_in(table: pa.Table) -> Iterator[Clip]:
    """The clips of a table."""
    for batch in table.to_batches(max_chunksize=1024):
        for row in batch.to_pylist():
            yield Clip(**row)


def _pack(questions: Sequence[Question]) -> str:
    """Serialize questions as JSON, which is simpler to pass on than nested list columns."""
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
