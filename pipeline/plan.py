"""What a job will do, worked out before it starts: which clip needs which compressor."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from pipeline.cache.fingerprint import SourceMissingError, clip_key, source_fingerprint
from pipeline.cache.tokens import TokenCache
from pipeline.finished import NOTHING_DONE, AnsweredClips
from pipeline.methods import PlannedMethod
from pipeline.rows import CLIP, Row, clip_row, failed, to_table
from pipeline.stages.declarations import DECODE_VIDEO
from tango_core.benchmarks.base import Protocol
from tango_core.compressors.base import Compressor
from tango_core.models.base import ModelSpec
from tango_core.printable import is_printable, printable
from tango_core.types import VideoItem

_ROWS_PER_CHUNK = 10_000


@dataclass(frozen=True)
class Plan:
    """Everything the stages need, and the clips to run them on.

    Attributes:
        model: The Video LLM.
        methods: Methods to compress and answer with.
        compressors: Cache name -> compressor.
        caches: Cache name -> cache. Opened here and sent to the workers, so that nobody works the
            name out twice.
        protocols: Benchmark name -> how it asks and reads.
        clips: Rows of `rows.CLIP`; `missing` lists the caches that do not hold the clip.
        answer: Whether questions are answered, or only caches filled.
    """

    model: ModelSpec
    methods: tuple[PlannedMethod, ...]
    compressors: Mapping[str, Compressor]
    caches: Mapping[str, TokenCache]
    protocols: Mapping[str, Protocol]
    clips: pa.Table
    answer: bool = True


def plan_clips(
    items: Iterable[tuple[str, VideoItem]],
    caches: Mapping[str, TokenCache],
    *,
    hash_content: bool = False,
    done: AnsweredClips = NOTHING_DONE,
    recompute: bool = False,
    identify: Callable[[str, bool], str] = source_fingerprint,
) -> pa.Table:
    """Look every clip up in every cache; one directory listing per cache, one `stat` per file.

    Args:
        items: (benchmark name, clip) pairs.
        caches: Caches that must hold every clip before it can be answered.
        hash_content: Identify files by their bytes and not by size and modification time.
        done: What an earlier attempt finished; a clip that is there with exactly its questions is
            skipped.
        recompute: Compute every clip for every cache, whether it is there or not.
        identify: Path and `hash_content` -> what identifies the source; see `source_fingerprint`.

    Raises:
        ValueError: If two clips of a benchmark share an id.
    """
    seen: set[tuple[str, str]] = set()
    chunks: list[pa.Table] = [CLIP.empty_table()]
    pending: list[Row] = []
    for benchmark, item in items:
        identity = (benchmark, item.video_id)
        if identity in seen:
            raise ValueError(
                f"benchmark {benchmark!r} lists video {item.video_id!r} twice; ids must be unique"
            )
        seen.add(identity)
        if len(done) and done.has(*identity, (question.id for question in item.questions)):
            continue
        pending.append(_plan_clip(benchmark, item, hash_content, identify))
        if len(pending) == _ROWS_PER_CHUNK:
            chunks.append(to_table(pending, CLIP))
            pending = []
    clips = pa.concat_tables([*chunks, to_table(pending, CLIP)])
    column = clips.column_names.index("missing")
    return clips.set_column(column, CLIP.field(column), _missing(clips, caches, recompute))


def _missing(clips: pa.Table, caches: Mapping[str, TokenCache], recompute: bool) -> pa.ChunkedArray:
    """Names of the caches that lack each clip; none for a clip that has failed.

    One listing is held at a time: those of many caches would be larger than the plan.
    """
    lacking = np.zeros((clips.num_rows, len(caches)), dtype=bool)
    keys = clips["clip_key"].to_pylist()
    for index, cache in enumerate(caches.values()):
        there = set() if recompute else cache.keys()
        lacking[:, index] = [key not in there for key in keys]
    lacking &= pc.equal(clips["status"], "ok").to_numpy()[:, None]
    names = pa.array(list(caches), pa.string())
    chunks = []
    for start in range(0, len(lacking), _ROWS_PER_CHUNK):
        part = lacking[start : start + _ROWS_PER_CHUNK]
        rows, which = part.nonzero()
        offsets = np.searchsorted(rows, np.arange(len(part) + 1))
        values = names.take(pa.array(which))
        chunks.append(pa.ListArray.from_arrays(pa.array(offsets, pa.int32()), values))
    return pa.chunked_array(chunks, CLIP.field("missing").type)


def _plan_clip(
    benchmark: str, item: VideoItem, hash_content: bool, identify: Callable[[str, bool], str]
) -> Row:
    """One row; a clip whose file cannot be read has failed before the job starts."""
    if not is_printable(item.path):
        shown = replace(item, path=printable(item.path))
        why = f"{shown.path}: the name is not UTF-8; rename the file or its folder"
        return failed(clip_row(benchmark, shown, "", ""), DECODE_VIDEO.failure, why)
    try:
        fingerprint = identify(item.path, hash_content)
    except SourceMissingError as error:
        return failed(clip_row(benchmark, item, "", ""), DECODE_VIDEO.failure, error)
    return clip_row(benchmark, item, clip_key(fingerprint, item.clip), fingerprint)
