"""Export a token cache as files for other projects."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from itertools import chain, groupby
from typing import Any, TypeVar

import pyarrow as pa
import pyarrow.parquet as pq
import torch
from safetensors.torch import save

from pipeline.cache.directory import MANIFEST
from pipeline.cache.features import FeatureCache
from pipeline.cache.folders import CacheFolder, EntryLocation, brief
from pipeline.cache.names import SIGNALS, held_by
from pipeline.cache.rows import SCHEMA, CacheError, ClipIdentity, StoredClip, clip_columns
from pipeline.storage import Storage
from tango_core.errors import InputError
from tango_core.types import CompressedVideo, VisualFeatures

R = TypeVar("R")

PART_BYTES = 256 * 10**6
# Columns about the cache's own storage format, which an export does not use.
_INNER_COLUMNS = ["dtype", "shape", "checksum", "format_version"]


def export_cache(
    folder: CacheFolder, destination: str, form: str, report: Callable[[str, str], None]
) -> None:
    """Write every clip of a cache, and last its manifest, which marks a complete export.

    Args:
        folder: The cache.
        destination: New or empty directory or URL.
        form: `"safetensors"` or `"parquet"`: see `write_safetensors` and `write_parquet`.
        report: Called for each clip that is skipped, with the name of its file and the problem.

    Raises:
        InputError: If the destination is not empty, or the cache has no valid manifest.
    """
    cache = folder.opened
    if folder.holds_features and form != "safetensors":
        raise InputError(f"{folder.name} holds features; export them with --format safetensors")
    target = Storage.at(destination)
    if target.files() or target.folders():
        raise InputError(f"{destination} is not empty; name a new directory")
    if isinstance(cache, FeatureCache):
        write_safetensors(target, _readable(folder, partial(_feature_file, cache), report))
    else:
        stored = _readable(folder, lambda locations: cache.row(locations[0].entry), report)
        if form == "safetensors":
            write_safetensors(target, map(_token_file, stored))
        else:
            write_parquet(target, stored)
    target.write(MANIFEST, cache.manifest.encode())


def _readable(
    folder: CacheFolder,
    read: Callable[[list[EntryLocation]], R],
    report: Callable[[str, str], None],
) -> Iterator[R]:
    """Yield the readable clips of a cache, by key; report the others."""
    for _, locations in groupby(folder.locations, lambda location: location.key):
        entries = list(locations)
        try:
            yield read(entries)
        except FileNotFoundError:
            report(entries[0].name, "it was removed in the meantime")
        except CacheError as error:
            report(entries[0].name, brief(error, folder))


Tensors = dict[str, torch.Tensor]
ClipFile = tuple[ClipIdentity, Tensors, dict[str, Any]]
"""Identity of a clip, tensors of its file, and further fields of its line in `clips.jsonl`."""


def write_safetensors(target: Storage, clips: Iterable[ClipFile]) -> None:
    """Write one file per clip, with the clip's identity as metadata, and `clips.jsonl`.

    A token set's file holds `tokens` (K, D) in the encoder's dtype, `indices` (K,) int64 into the
    flat grid, `grid` (3,) int64, `timestamps` (T,) float64 in seconds, and `companions` (K, E, D)
    if the model has them. A file of features holds `tokens` (T, L, D), `companions` (T, L, E, D),
    every stored signal, `grid` (2,) and `timestamps`.
    """
    with target.writing("clips.jsonl") as index:
        for clip, tensors, more in clips:
            name, about = f"{clip.key}.safetensors", clip_columns(clip)
            # The format accepts only strings.
            metadata = {key: str(value) for key, value in about.items() if value is not None}
            target.write(name, save(tensors, metadata))
            line = {"file": name, **about, **more}
            index.write(json.dumps(line, ensure_ascii=False).encode() + b"\n")


def _tensors(
    video: CompressedVideo | VisualFeatures, names: Iterable[str]
) -> dict[str, torch.Tensor]:
    found = {name: getattr(video, name) for name in ("tokens", "timestamps", "companions", *names)}
    present = {name: one.contiguous() for name, one in found.items() if one is not None}
    return {**present, "grid": torch.tensor(video.grid)}


def _token_file(stored: StoredClip) -> ClipFile:
    video = stored.entry.video
    counts = {"num_tokens_total": video.num_total, "num_tokens_kept": video.num_kept}
    return stored.clip, _tensors(video, ["indices"]), {"grid": video.grid, **counts}


def _feature_file(cache: FeatureCache, locations: list[EntryLocation]) -> ClipFile:
    parts = [location.part for location in locations]
    signals = held_by(parts) & set(SIGNALS)
    found = cache.read(locations[0].key, parts, signals)
    return found.clip, _tensors(found.features, signals), {"signals": sorted(signals)}


def write_parquet(target: Storage, clips: Iterator[StoredClip]) -> None:
    """Write `clips-00000.parquet`, ... with about 256 MB of tokens each and a row group per clip.

    The columns are the cache's, but `tokens` is a list of K lists of D float32, which any
    reader understands and which holds every encoder's dtype without loss. If the model has
    companions, the column `companions` holds K lists of E * D.
    """
    for number, first in enumerate(clips):
        table = _as_lists(first)
        with (
            target.writing(f"clips-{number:05d}.parquet") as file,
            pq.ParquetWriter(file, table.schema, compression="zstd", use_dictionary=False) as out,
        ):
            size = 0
            for rows in chain([table], map(_as_lists, clips)):
                out.write_table(rows)
                size += rows.nbytes
                if size >= PART_BYTES:
                    break


def _as_lists(stored: StoredClip) -> pa.Table:
    """The row of a token set with its tokens as lists."""
    video = stored.entry.video
    table = stored.table.select([name for name in SCHEMA.names if name not in _INNER_COLUMNS])
    at = table.schema.get_field_index("tokens")
    table = table.set_column(at, "tokens", _lists(video.tokens))
    if video.companions is not None:
        table = table.append_column("companions", _lists(video.companions.flatten(1)))
    return table


def _lists(rows: torch.Tensor) -> pa.ListArray:
    """(K, D) as one list of K lists of D float32."""
    flat = pa.array(rows.float().reshape(-1).numpy())
    inner = pa.FixedSizeListArray.from_arrays(flat, rows.shape[1])
    return pa.ListArray.from_arrays(pa.array([0, len(rows)], pa.int32()), inner)
