"""One row of a token cache: the columns, and the checks that every reader of a row makes.

Tokens are stored as bytes with their dtype and shape beside them: bfloat16 survives, and plain
pandas, pyarrow and DuckDB read every column without Ray or torch. The shape is (K, D), or
(K, 1 + E, D) for models whose tokens have companions (`companions.py`).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any

import numpy as np
import pyarrow as pa
from zlib_ng.zlib_ng import crc32

from pipeline.cache.companions import joined, parted
from pipeline.cache.sealed_rows import (
    CHECKSUM,
    CRC_0_1,
    CacheError,
    ClipIdentity,
    clip_columns,
    guarded,
    identity_of,
    raise_unless_sealed,
    sealed_table,
    the_row,
)
from pipeline.rows import source_columns, source_of
from tango_core.types import CompressedVideo

__all__ = [
    "FORMAT_VERSION",
    "SCHEMA",
    "WRITE_OPTIONS",
    "CacheError",
    "ClipIdentity",
    "Entry",
    "StoredClip",
    "read_checked",
    "to_table",
]

FORMAT_VERSION = 1

SCHEMA = pa.schema(
    [
        ("clip_key", pa.string()),
        ("video_id", pa.string()),
        ("clip_start", pa.float64()),
        ("clip_end", pa.float64()),
        ("source_fingerprint", pa.string()),
        ("indices", pa.list_(pa.int32())),
        ("tokens", pa.large_binary()),
        ("dtype", pa.string()),
        ("shape", pa.list_(pa.int32())),
        ("grid", pa.list_(pa.int32())),
        ("timestamps", pa.list_(pa.float64())),
        ("duration_s", pa.float64()),
        ("frame_height", pa.int32()),
        ("num_tokens_total", pa.int32()),
        ("num_tokens_kept", pa.int32()),
        ("checksum", pa.string()),
        ("decode_ms", pa.float64()),
        ("encode_ms", pa.float64()),
        ("compress_ms", pa.float64()),
        ("created_at", pa.timestamp("us", tz="UTC")),
        ("format_version", pa.int32()),
    ]
)


# Token bytes are nearly random: dictionaries and statistics cost time and save nothing.
WRITE_OPTIONS: Mapping[str, Any] = {
    "compression": "zstd",
    "compression_level": 1,
    "use_dictionary": False,
    "write_statistics": False,
}


@dataclass(frozen=True)
class Entry:
    """One row of the cache.

    Attributes:
        video: The kept tokens, on the CPU.
        decode_video_ms: Time to decode the clip, in milliseconds; the column `decode_ms`.
        encode_ms: Time of the vision encoder.
        compress_ms: Time of the compressor.
    """

    video: CompressedVideo
    decode_video_ms: float
    encode_ms: float
    compress_ms: float


@dataclass(frozen=True)
class StoredClip:
    """One clip as it is in its file, checked.

    Attributes:
        clip: Which clip it is.
        entry: What was kept of it.
        table: The same as one row with the columns of `SCHEMA`.
        sealed: Whether its checksum covers all columns and names its cache; that of release 0.1
            covers tokens and indices alone.
    """

    clip: ClipIdentity
    entry: Entry
    table: pa.Table
    sealed: bool


def to_table(clip: ClipIdentity, entry: Entry, created_at: datetime, cache: str) -> pa.Table:
    """An entry as one row with the columns of `SCHEMA`, sealed for the cache with this hash."""
    import torch  # here, because caches are listed without it

    video = entry.video
    # As bytes, because numpy has no bfloat16.
    stored = joined(video.tokens, video.companions)
    raw = stored.detach().cpu().contiguous().view(torch.uint8).numpy().tobytes()
    indices = video.indices.cpu().tolist()
    row = {
        **clip_columns(clip),
        "indices": indices,
        "tokens": raw,
        "dtype": str(video.tokens.dtype).removeprefix("torch."),
        "shape": list(stored.shape),
        "grid": list(video.grid),
        "timestamps": video.timestamps.cpu().tolist(),
        **source_columns(video.source),
        "num_tokens_total": video.num_total,
        "num_tokens_kept": video.num_kept,
        "decode_ms": entry.decode_video_ms,
        "encode_ms": entry.encode_ms,
        "compress_ms": entry.compress_ms,
        "created_at": created_at,
        "format_version": FORMAT_VERSION,
    }
    return sealed_table(row, SCHEMA, cache)


def read_checked(read: Callable[[], pa.Table], key: str, cache: str, where: str) -> StoredClip:
    """Parse a clip's row and check everything that can be checked.

    Args:
        read: Parses bytes that are in memory, so that an `OSError` is about them.
        key: Of the clip.
        cache: Hash of the cache that the file is in.
        where: Its file, for messages.

    Raises:
        CacheError: If it is damaged, of another format, or another clip.
    """
    return guarded(read, lambda table: _checked(table, key, cache), where)


def _checked(table: pa.Table, key: str, cache: str) -> StoredClip:
    """Rebuild a clip from its row, with the errors of wrong columns as they come.

    Raises:
        CacheError: If the row is of another format, or another clip's. The message is a clause
            about "it".
    """
    row = the_row(table, FORMAT_VERSION, key, cache)
    if not isinstance(row["tokens"], bytes):
        raise CacheError(f"its tokens are {type(row['tokens']).__name__}, not bytes")
    sealed = not row[CHECKSUM].startswith(CRC_0_1)
    if not sealed and row[CHECKSUM] != _checksum_0_1(row["tokens"], row["indices"]):
        raise CacheError("checksum differs")
    if row["clip_key"] != key:
        raise CacheError(f"it holds the clip {row['clip_key']}")
    entry = _from_row(row)
    if (row["num_tokens_kept"], row["num_tokens_total"]) != (
        entry.video.num_kept,
        entry.video.num_total,
    ):
        raise CacheError("its token counts differ from its tokens")
    # Last: what is above says more exactly what is wrong.
    if sealed:
        raise_unless_sealed(table, cache)
    return StoredClip(identity_of(row), entry, table, sealed)


def _from_row(row: Mapping[str, Any]) -> Entry:
    """Rebuild an entry from the columns of `SCHEMA`."""
    import torch

    dtype = getattr(torch, row["dtype"])
    tokens = (
        torch.frombuffer(bytearray(row["tokens"]), dtype=dtype)
        if row["tokens"]
        else torch.empty(0, dtype=dtype)
    )
    frames, height, width = row["grid"]
    tokens, companions = parted(tokens.reshape(row["shape"]), places=1)
    return Entry(
        video=CompressedVideo(
            tokens=tokens,
            indices=torch.tensor(row["indices"], dtype=torch.int64),
            grid=(frames, height, width),
            timestamps=torch.tensor(row["timestamps"], dtype=torch.float64),
            source=source_of(row),
            companions=companions,
        ),
        decode_video_ms=row["decode_ms"],
        encode_ms=row["encode_ms"],
        compress_ms=row["compress_ms"],
    )


def _checksum_0_1(tokens: bytes, indices: list[int]) -> str:
    """The checksum of release 0.1: CRC-32 of the payload."""
    return f"crc32:{crc32(np.asarray(indices, dtype=np.int32).tobytes(), crc32(tokens)):08x}"
