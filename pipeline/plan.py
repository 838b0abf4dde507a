"""Plan a job: find out which token sets and answers every clip needs."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence, Set
from dataclasses import dataclass, replace
from functools import lru_cache
from itertools import islice, repeat
from types import MappingProxyType

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from pipeline.cache.directory import TokenCache, open_cache
from pipeline.cache.features import FeatureCache, FeatureStore
from pipeline.cache.names import TOKENS, SourceMissingError, clip_key, held_by, source_fingerprint
from pipeline.cache.rows import INT8
from pipeline.clips import DECODE_VIDEO, Clip, clip_of
from pipeline.progress.answers import Continued
from pipeline.question_groups import groups_of, with_other_questions
from pipeline.rows import CLIP, clips_in, to_table
from pipeline.storage import Storage
from pipeline.storage.copies import Mirror, VideoCache, fingerprint_of, remote_fingerprint
from pipeline.storage.objects import ObjectStore, Stored
from pipeline.storage.urls import Url, UrlError, is_url, place
from tango_core.benchmarks.base import Protocol
from tango_core.compressors import Method
from tango_core.compressors.base import Compressor
from tango_core.errors import InputError
from tango_core.models.base import ModelSpec, raise_if_not_provided
from tango_core.printable import is_printable, printable
from tango_core.types import VideoItem

# More at a time take longer: Python's garbage collector looks at them again and again.
_ROWS_PER_CHUNK = 1_000
_FILES_KNOWN = 10_000
# Number of single requests for objects of one folder after which the folder is listed instead.
_SINGLE = 8
_NAME = ["benchmark", "video_id"]
# A name per clip and cache would take more memory than the rest of the plan.
_NAMES = pa.list_(pa.dictionary(pa.int16(), pa.string()))


@dataclass(frozen=True)
class Plan:
    """The clips of a job and everything that the stages need to process them.

    Attributes:
        model: The Video LLM.
        methods: Methods to compress and answer with.
        compressors: Cache name -> compressor.
        caches: Cache name -> cache. Sent to the workers, so that they use the same caches.
        protocols: Benchmark name -> protocol that builds its prompts and reads its replies.
        clips: Rows of `rows.CLIP`; `missing` lists the caches that do not hold the clip. The
            strings of lists are dictionary-encoded.
        answer: Whether questions are answered; if not, only caches are filled.
        features: The job's feature store, if it has one.
    """

    model: ModelSpec
    methods: tuple[PlannedMethod, ...]
    compressors: Mapping[str, Compressor]
    caches: Mapping[str, TokenCache]
    protocols: Mapping[str, Protocol]
    clips: pa.Table
    answer: bool = True
    features: FeatureStore | None = None


def plan_clips(
    items: Iterable[tuple[str, VideoItem]],
    caches: Mapping[str, TokenCache],
    *,
    hash_content: bool = False,
    continued: Continued | None = None,
    recompute: bool = False,
    identify: Callable[[str, bool], str] = source_fingerprint,
    features: FeatureStore | None = None,
    compressors: Mapping[str, Compressor] = MappingProxyType({}),
) -> pa.Table:
    """Look up every clip in every cache, with one listing per cache and one `stat` per file.

    Args:
        items: (benchmark name, clip) pairs.
        caches: Caches that must hold every clip before it can be answered.
        hash_content: Identify files by their bytes instead of size and modification time.
        continued: Answers of earlier attempts; clips whose answers are still valid are skipped.
        recompute: Compute every clip for every cache, even if it is cached.
        identify: Function of path and `hash_content` that returns the source's fingerprint; see
            `source_fingerprint`.
        features: The job's feature store, if it has one.
        compressors: Cache name -> compressor; for a job with a feature store, and for methods that
            read the questions.

    Raises:
        ValueError: If two clips of a benchmark share an id.
    """
    if any(getattr(one, "question", None) == "other_clip" for one in compressors.values()):
        items = with_other_questions(items)
    # Many clips may be of one file.
    identify = lru_cache(_FILES_KNOWN)(identify)
    chunks, names = [CLIP.empty_table()], [CLIP.empty_table().select(_NAME)]
    rest = iter(items)
    while some := list(islice(rest, _ROWS_PER_CHUNK)):
        rows = [_plan_clip(benchmark, item, hash_content, identify) for benchmark, item in some]
        table = to_table(rows, CLIP)
        names.append(table.select(_NAME))
        if continued:
            kept = continued.keep(rows, ([q.id for q in item.questions] for _, item in some))
            table = table.filter(pa.array(~kept))
        chunks.append(table)
    counts = pa.concat_tables(names).group_by(_NAME).aggregate([([], "count_all")])
    for twice in counts.filter(pc.greater(counts["count_all"], 1)).slice(0, 1).to_pylist():
        benchmark, video = (twice[name] for name in _NAME)
        raise InputError(f"benchmark {benchmark!r} lists video {video!r} twice; ids must be unique")
    return look_up(pa.concat_tables(chunks), caches, features, compressors, recompute=recompute)


def look_up(
    clips: pa.Table,
    caches: Mapping[str, TokenCache],
    features: FeatureStore | None,
    compressors: Mapping[str, Compressor],
    *,
    recompute: bool = False,
) -> pa.Table:
    """Fill the columns of `rows.CLIP` that depend on the caches' content; see `plan_clips`.

    A token set is missing if it is neither stored nor computable from stored features.
    """
    keys = clips["clip_key"].to_pylist()
    is_ok = np.asarray(pc.equal(clips["status"], "ok").to_numpy(), dtype=bool)
    lacking = _lacking(clips, keys, caches, compressors, recompute) & is_ok[:, None]
    # Per cache what its token sets are computed from; what the job stores, and of which clips.
    reads = {name: {TOKENS} for name in caches}
    kept, parts, fill = set[str](), dict[str, set[str]](), False
    if features is not None:
        for name in reads.keys() & compressors.keys():
            reads[name] |= compressors[name].needs
        kept = {TOKENS, *features.signals} if features.writes else kept
        parts, fill = features.cache.parts(), features.fill
    names = [TOKENS, *sorted(kept.union(*reads.values()) - {TOKENS})]
    # Clips whose token sets are all stored need features only if the job fills the store.
    wanted = is_ok & (lacking.any(axis=1) | fill)
    stored = _among(keys, parts.values()) & wanted[:, None]
    held = _columns(stored[:, [name in held_by([part]) for part in parts]] for name in names)
    held &= held[:, :1]  # signals count only if tokens are stored
    for index, own in enumerate(reads.values()):
        lacking[:, index] &= ~held[:, [name in own for name in names]].all(axis=1)
    # If a clip is encoded at all, everything that the job stores is encoded.
    everything = is_ok & (lacking.any(axis=1) | fill)
    encode = _columns(
        everything[:, None] if name in kept else lacking[:, [name in own for own in reads.values()]]
        for name in names
    )
    columns = {
        "missing": _named(lacking, list(caches)),
        "encode": _named(encode & ~held, names),
        "stored": _named(stored, list(parts)),
    }
    for name, values in columns.items():
        clips = clips.set_column(clips.column_names.index(name), name, values)
    return clips


def _columns(masks: Iterable[npt.NDArray[np.bool_]]) -> npt.NDArray[np.bool_]:
    """Mask (rows, masks) of rows in which any column of a mask is true."""
    return np.stack([mask.any(axis=1) for mask in masks], axis=1)


def _lacking(
    clips: pa.Table,
    keys: Sequence[str],
    caches: Mapping[str, TokenCache],
    compressors: Mapping[str, Compressor],
    recompute: bool,
) -> npt.NDArray[np.bool_]:
    """Mask (clips, caches) of clips that a cache does not hold.

    Keeps only one listing in memory, because all of them may be larger than the plan.
    """
    if recompute:
        return np.ones((len(keys), len(caches)), dtype=bool)
    lacking = ~_among(keys, (cache.keys() for cache in caches.values()))
    for index, (name, cache) in enumerate(caches.items()):
        compressor = compressors.get(name)
        if compressor is not None and compressor.question_field is not None:
            held = cache.keys()
            lacking[:, index] = [
                not all(group.key in held for group in groups_of(clip, compressor))
                for clip in clips_in(clips)
            ]
    return lacking


def _among(keys: Sequence[str], sets: Iterable[Set[str]]) -> npt.NDArray[np.bool_]:
    """Mask (keys, sets) of keys that are in a set."""
    columns = [
        np.fromiter((key in one for key in keys) if one else repeat(False), bool, len(keys))
        for one in sets
    ]
    return np.stack(columns, axis=1) if columns else np.zeros((len(keys), 0), dtype=bool)


def _named(chosen: npt.NDArray[np.bool_], columns: Sequence[str]) -> pa.ChunkedArray:
    """Convert a mask (rows, columns) to a list of column names per row, as `_NAMES`."""
    names = pa.array(columns, pa.string())
    chunks: list[pa.Array] = []
    for start in range(0, len(chosen), _ROWS_PER_CHUNK):
        part = chosen[start : start + _ROWS_PER_CHUNK]
        rows, which = part.nonzero()
        offsets = np.searchsorted(rows, np.arange(len(part) + 1))
        values = pa.DictionaryArray.from_arrays(which.astype(np.int16), names)
        chunks.append(pa.ListArray.from_arrays(pa.array(offsets, pa.int32()), values))
    return pa.chunked_array(chunks, _NAMES)


def _plan_clip(
    benchmark: str, item: VideoItem, hash_content: bool, identify: Callable[[str, bool], str]
) -> Clip:
    """Row of one clip; if its file is missing, the clip has already failed."""
    if not is_printable(item.path):
        shown = replace(item, path=printable(item.path))
        why = f"{shown.path}: the name is not UTF-8; rename the file or its folder"
        return clip_of(benchmark, shown).failed(DECODE_VIDEO.failure, why)
    try:
        version = identify(item.path, False) if hash_content else None
        fingerprint = identify(item.path, hash_content)
    except SourceMissingError as error:
        return clip_of(benchmark, item).failed(DECODE_VIDEO.failure, error)
    return clip_of(benchmark, item, clip_key(fingerprint, item.clip), fingerprint, version)


@dataclass(frozen=True)
class PlannedMethod:
    """A method of a job with its options and its cache.

    Attributes:
        name: Unique within the job, e.g. `"tango r=0.1"`.
        method: Compressor and, for some, in-LLM pruner.
        cache: Name of the cache its compressor fills; methods with equal compressors share one.
    """

    name: str
    method: Method
    cache: str

    @property
    def retention(self) -> float:
        """Requested share of the visual tokens."""
        return float(self.method.options.get("retention", self.method.compressor.retention))


def plan_methods(
    methods: Sequence[tuple[str, Method]],
    model: ModelSpec,
    cache_root: str | Storage,
    features: FeatureCache | None = None,
) -> tuple[tuple[PlannedMethod, ...], dict[str, Compressor], dict[str, TokenCache]]:
    """Open each method's cache; methods with equal compressors share one.

    Args:
        methods: Names and methods.
        model: The Video LLM.
        cache_root: Directory or URL of all caches.
        features: The feature cache of the job, if it has one.

    Returns:
        The methods, cache name -> compressor, and cache name -> cache.

    Raises:
        ValueError: If a method needs a signal that the model's encoder cannot compute.
    """
    from_int8 = features is not None and features.dtype == INT8
    planned: list[PlannedMethod] = []
    compressors: dict[str, Compressor] = {}
    caches: dict[str, TokenCache] = {}
    for name, method in methods:
        raise_if_not_served(name, method, model)
        cache = open_cache(cache_root, model, method.compressor, from_int8=from_int8)
        compressors.setdefault(cache.name, method.compressor)
        caches.setdefault(cache.name, cache)
        planned.append(PlannedMethod(name, method, cache.name))
    return tuple(planned), compressors, caches


def raise_if_not_served(name: str, method: Method, model: ModelSpec) -> None:
    """Refuse a method that needs a signal that the model's encoder does not provide.

    Args:
        name: Name of the cell, for the message.
        method: The method.
        model: The model.

    Raises:
        InputError: If signals are missing; the message names them.
    """
    try:
        raise_if_not_provided(model, method.compressor.needs)
    except InputError as error:
        raise InputError(f"method {name!r}: {error}") from error


class Sources:
    """Fingerprints sources; uses listings of object stores instead of a request per clip.

    Responses are cached for the lifetime of this object, so that fingerprints with and without
    `hash_content` refer to the same version of a video.

    Args:
        mirrors: Mirrors of the benchmarks whose root is in an object store.
        videos: Cache of downloaded videos, used if a video is identified by its bytes.
    """

    def __init__(self, mirrors: Sequence[Mirror], videos: VideoCache) -> None:
        self._mirrors, self._videos = mirrors, videos
        self._num_requests: dict[str, int] = {}
        self._fingerprints: dict[str, str] = {}
        self._listings: dict[str, dict[str, Stored]] = {}

    def __call__(self, path: str, hash_content: bool) -> str:
        """See `source_fingerprint`.

        Raises:
            SourceMissingError: If `path` does not exist, or is a URL with credentials.
            OSError: If a store does not answer.
        """
        if not is_url(path):
            return source_fingerprint(path, hash_content)
        try:
            found = self._of_store(path)
            if not hash_content:
                return found
            with self._videos.fetched(path, found) as local:
                return source_fingerprint(local, hash_content=True)
        except (FileNotFoundError, UrlError) as error:
            raise SourceMissingError(str(error)) from error

    def _of_store(self, path: str) -> str:
        """Fingerprint of an object, from a listing if possible."""
        for mirror in self._mirrors:
            found = mirror.fingerprint(path)
            if found is not None:
                return found
        if path in self._fingerprints:
            return self._fingerprints[path]
        where = place(path)
        assert isinstance(where, Url)
        folder = str(where.parent)
        self._num_requests[folder] = self._num_requests.get(folder, 0) + 1
        if self._num_requests[folder] > _SINGLE and folder not in self._listings:
            listing = ObjectStore(where.scheme).listing(where.parent.path)
            self._listings[folder] = {entry.name: entry for entry in listing if entry.is_file}
        entry = self._listings.get(folder, {}).get(where.name)
        if entry:
            return fingerprint_of(where, [entry])
        self._fingerprints[path] = remote_fingerprint(path)
        return self._fingerprints[path]
