"""Results of clips, Arrow schemas of planned clips and of answer files, and blocks of Ray."""

from __future__ import annotations

import pickle
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from types import NoneType
from typing import Any, get_args, get_type_hints

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from pipeline.clips import DAMAGED, FAILED, Clip


@dataclass(frozen=True, kw_only=True)
class AnswerRow:
    """The answer to one question with one method; a row of `answers/*.parquet`.

    The columns are explained in jobs/README.md. A value that does not apply is `None`.
    """

    benchmark: str
    video_id: str
    question_id: str = ""
    cell: str = ""
    method: str = ""
    retention: float | None = None
    status: str = "ok"
    error: str | None = None
    text: str | None = None
    choice: int | None = None
    answer: int | None = None
    correct: bool | None = None
    score: float | None = None
    answer_text: str | None = None
    choice_text: str | None = None
    reading_rule: str | None = None
    harness_score: float | None = None
    tokens_total: int | None = None
    tokens_kept: int | None = None
    tokens_with_newlines: int | None = None
    clip_text_tokens: int | None = None
    prompt_tokens: int | None = None
    new_tokens: int | None = None
    decode_video_ms: float | None = None
    encode_ms: float | None = None
    encode_tflops: float | None = None
    compress_ms: float | None = None
    segment_ms: float | None = None
    select_ms: float | None = None
    merge_ms: float | None = None
    cache_read_ms: float | None = None
    prefill_ms: float | None = None
    ttft_ms: float | None = None
    decode_ms: float | None = None
    peak_gib: float | None = None
    peak_of: str | None = None
    cache: str | None = None
    groups: str | None = None
    prompt_digest: str | None = None
    frames_digest: str | None = None
    kept_digest: str | None = None

    @property
    def has_failed(self) -> bool:
        """Whether it failed; for a damaged clip, whether it was not asked."""
        return self.status in FAILED and not (self.status == DAMAGED and self.prompt_tokens)


@dataclass(frozen=True, kw_only=True)
class Result:
    """Result of a clip for the driver.

    Attributes not listed here have the same meaning as in `Clip`.

    Attributes:
        num_misses: Number of caches that did not hold the clip.
        num_computed: Number of token sets computed for it.
        lost_entry: Whether it failed because a cache entry that the plan relied on was removed or
            damaged; see `run.complete`.
        answers: One per question and method.
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
    answers: Sequence[AnswerRow] = field(default_factory=list)

    @property
    def name(self) -> tuple[str, str]:
        """Benchmark and video id."""
        return self.benchmark, self.video_id

    @property
    def has_failed(self) -> bool:
        """Whether anything about the clip failed: the clip itself, or an answer."""
        return self.status != "ok" or any(answer.has_failed for answer in self.answers)


def result_of(
    clip: Clip,
    answers: Sequence[AnswerRow],
    *,
    store_fault: str | None = None,
    lost_entry: bool = False,
) -> Result:
    """Build the result of a finished clip."""
    same = ("benchmark", "video_id", "path", "status", "error", "decode_video_ms", "encode_ms")
    return Result(
        **{name: getattr(clip, name) for name in same},
        store_fault=store_fault or clip.store_fault,
        lost_entry=lost_entry,
        num_misses=len(clip.missing),
        num_computed=len(clip.compress_ms),
        warnings=list(clip.warnings or ()),
        answers=list(answers),
    )


def filled(clip: Clip) -> Result:
    """The result of a clip in a job that only fills caches.

    The clip fails if any method failed, because there are no answers to record it.
    """
    errors = clip.compress_errors
    return result_of(clip.failed_by_methods(errors) if errors and clip.status == "ok" else clip, [])


_TYPES: dict[Any, pa.DataType] = {
    str: pa.string(),
    float: pa.float64(),
    int: pa.int64(),
    bool: pa.bool_(),
    Sequence[str]: pa.list_(pa.string()),
}


def _schema_of(record: type, before: str = "") -> pa.Schema:
    """Columns for the fields of a record, in their order, up to one of them."""
    columns = []
    for name, hint in get_type_hints(record).items():
        if name == before:
            break
        optional = [kind for kind in get_args(hint) if kind is not NoneType]
        columns.append((name, _TYPES[hint] if hint in _TYPES else _TYPES[optional[0]]))
    return pa.schema(columns)


CLIP = _schema_of(Clip, before="decode_video_ms")
"""A planned clip; the other fields of `Clip` are filled by the stages."""
ANSWER = _schema_of(AnswerRow)


def to_table(rows: Iterable[Mapping[str, Any] | object], schema: pa.Schema) -> pa.Table:
    """Convert rows to an Arrow table; extra keys are dropped, absent ones become null."""
    return pa.Table.from_pylist([_plain(row) for row in rows], schema=schema)


def _plain(row: Mapping[str, Any] | object) -> Mapping[str, Any]:
    return row if isinstance(row, Mapping) else vars(row)


def clips_in(table: pa.Table) -> Iterator[Clip]:
    """The clips of a table."""
    for batch in table.to_batches(max_chunksize=1024):
        for row in batch.to_pylist():
            yield Clip(**row)


def packed(records: Iterable[Clip | Result]) -> pa.Table:
    """Clips or results as a block of Ray: a pickle per row."""
    pickles = [pickle.dumps(record, protocol=5) for record in records]
    return pa.table({"record": pa.array(pickles, pa.large_binary())})


def unpacked(block: pa.Table) -> Iterator[Any]:
    """The records of a block."""
    for record in block["record"]:
        yield pickle.loads(record.as_buffer())


def are_failed(answers: pa.Table, *, keep_damaged: bool = True) -> npt.NDArray[np.bool_]:
    """Apply `AnswerRow.has_failed` to every row of a table of answers.

    Args:
        answers: Rows of `ANSWER`.
        keep_damaged: `False` to count all answers about damaged clips as failed
            (`decode.damaged: fail`), even if an earlier attempt answered them.
    """
    status = answers["status"]
    failed = pc.is_in(status, pa.array(FAILED, status.type))
    if keep_damaged and "prompt_tokens" in answers.column_names:
        answered = pc.fill_null(pc.greater(answers["prompt_tokens"].cast(pa.float64()), 0), False)
        failed = pc.and_not(failed, pc.and_(pc.equal(status, DAMAGED), answered))
    return np.asarray(failed.to_numpy(), dtype=bool)
