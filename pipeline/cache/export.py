"""Export a token cache as files for other projects."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator
from itertools import chain
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import torch
from safetensors.torch import save

from pipeline.cache.directory import MANIFEST
from pipeline.cache.features import FeatureCache
from pipeline.cache.folders import CacheFolder, brief
from pipeline.cache.names import SIGNALS, held_by
from pipeline.cache.rows import SCHEMA, CacheError, ClipIdentity, StoredClip, clip_columns
from pipeline.storage import Storage
from tango_core.errors import InputError

PART_BYTES = 256 * 10**6
# Columns about the cache's own storage format, which an export does not use.
_INNER_COLUMNS = ["dtype", "shape", "checksum", "format_version"]


def export_cache(
    folder: CacheFolder, destination: str, form: str, report: Callable[[str, str | None], None]
) -> None:
    """Write every clip of a cache, and last its manifest, which marks a complete export.

    Args:
        folder: The cache.
        destination: New or empty directory or URL.
        form: `"safetensors"` or `"parquet"`: see `write_safetensors` and `write_parquet`.
        report: Called with the name of each clip's file in the cache and, if the clip is skipped,
            the problem.

    Raises:
        ValueError: If the destination is not empty, or the cache has no valid manifest.
    """
    if folder.cache is None:
        raise InputError(f"{folder.name} cannot be exported: {folder.problem}")
    if folder.holds_features and form != "safetensors":
        raise InputError(
            f"--format {form} is for token sets, and {folder.name} holds features; "
            "export them as safetensors"
        )
    target = Storage.at(destination)
    if target.files() or target.folders():
        raise InputError(f"{destination} is not empty; name a new directory")
    if folder.holds_features:
        write_safetensors(target, _feature_files(folder, report))
    elif form == "safetensors":
        write_safetensors(target, map(_token_file, _good_clips(folder, report)))
    else:
        write_parquet(target, _good_clips(folder, report))
    target.write(MANIFEST, folder.cache.manifest.encode())


def _good_clips(
    folder: CacheFolder, report: Callable[[str, str | None], None]
) -> Iterator[StoredClip]:
    """Yield the readable clips of a token cache, by key; report the others."""
    seen: set[str] = set()
    for location in folder.locations:
        problem = None
        try:
            if location.key not in seen:
                stored = folder.row(location.entry, in_shard=bool(location.shard))
                assert isinstance(stored, StoredClip)
                seen.add(location.key)
                yield stored
        except FileNotFoundError:
            problem = "it was removed in the meantime"
        except CacheError as error:
            problem = brief(error, folder)
        report(location.name, problem)


ClipFile = tuple[ClipIdentity, dict[str, torch.Tensor], dict[str, Any]]
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
            target.write(name, _in_fixed_order(save(tensors, metadata)))
            line = {"file": name, **about, **more}
            index.write(json.dumps(line, ensure_ascii=False).encode() + b"\n")


def _in_fixed_order(content: bytes) -> bytes:
    """The same safetensors file with sorted metadata, whose order changes from call to call."""
    start = 8 + int.from_bytes(content[:8], "little")
    header = json.loads(content[8:start])
    header["__metadata__"] = dict(sorted(header["__metadata__"].items()))
    text = json.dumps(header, separators=(",", ":"), ensure_ascii=False).encode()
    text += b" " * (-len(text) % 8)  # tensors begin at a multiple of 8 bytes
    return len(text).to_bytes(8, "little") + text + content[start:]


def _token_file(stored: StoredClip) -> ClipFile:
    video = stored.entry.video
    tensors = {
        "tokens": video.tokens,
        "indices": video.indices,
        "grid": torch.tensor(video.grid),
        "timestamps": video.timestamps,
    }
    if video.companions is not None:
        tensors["companions"] = video.companions
    counts = {"num_tokens_total": video.num_total, "num_tokens_kept": video.num_kept}
    return stored.clip, tensors, {"grid": video.grid, **counts}


def _feature_files(
    folder: CacheFolder, report: Callable[[str, str | None], None]
) -> Iterator[ClipFile]:
    """Yield the readable clips of a feature cache; report the others."""
    assert isinstance(folder.cache, FeatureCache)
    parts: dict[str, list[str]] = {}
    for location in folder.locations:
        parts.setdefault(location.key, []).append(location.part)
    for key, own in parts.items():
        problem, signals = None, held_by(own) & set(SIGNALS)
        try:
            found = folder.cache.read(key, own, signals)
        except FileNotFoundError:
            problem = "its tokens were removed in the meantime"
        except CacheError as error:
            problem = brief(error, folder)
        else:
            features = found.features
            tensors = {
                "tokens": features.tokens.contiguous(),
                "grid": torch.tensor(features.grid),
                "timestamps": features.timestamps,
                **{name: getattr(features, name) for name in sorted(signals)},
            }
            if features.companions is not None:
                tensors["companions"] = features.companions.contiguous()
            yield found.clip, tensors, {"signals": sorted(signals)}
        for _ in own[1:]:
            report(key, None)
        report(key, problem)


def write_parquet(target: Storage, clips: Iterator[StoredClip]) -> None:
    """Write `clips-00000.parquet`, ... with about 256 MB of tokens each and a row group per clip.

    The columns are the cache's, but `tokens` is a list of K lists of D float32, which any
    reader understands and which holds every encoder's dtype without loss. If the model has
    companions, the column `companions` holds K lists of E * D.
    """
    for number, first in enumerate(clips):
        schema = _as_lists(first).schema
        with (
            target.writing(f"clips-{number:05d}.parquet") as file,
            pq.ParquetWriter(file, schema, compression="zstd", use_dictionary=False) as writer,
        ):
            size = 0
            for stored in chain([first], clips):
                writer.write_table(_as_lists(stored))
                size += _num_values(stored) * 4
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


def _num_values(stored: StoredClip) -> int:
    """Number of values in a clip's tokens and companions."""
    companions = stored.entry.video.companions
    more = 0 if companions is None else companions.numel()
    return int(stored.entry.video.tokens.numel() + more)
