"""One row of a token cache: the columns, and the checks that every reader of a row makes.

Tokens are stored as bytes with their dtype and shape beside them: bfloat16 survives, and plain
pandas, pyarrow and DuckDB read every column without Ray or torch. The shape is (K, D), or
(K, 1 + E, D) for models whose tokens have companions (DeepStack), with the token first. The columns
that say which clip a row is of, and the checksum over all columns, are those of features, too.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np
import pyarrow as pa
from zlib_ng.zlib_ng import crc32

from pipeline.clips import bounds
from pipeline.rows import source_columns, source_of
from pipeline.storage.seal import digest_of
from tango_core.errors import InputError
from tango_core.types import CompressedVideo

if TYPE_CHECKING:
    from torch import Tensor

CHECKSUM = "checksum"
CRC_0_1 = "crc32:"
_OF = "@"

T = TypeVar("T")

# Errors caused by columns that are empty or have a wrong type or length.
WRONG_VALUES = (TypeError, ValueError, AttributeError, RuntimeError, OverflowError, MemoryError)


class CacheError(InputError):
    """A cache entry or directory is damaged or does not match its name."""


@dataclass(frozen=True)
class ClipIdentity:
    """Which clip of which file an entry belongs to.

    Attributes:
        key: See `fingerprint.clip_key`.
        video_id: The benchmark's name of the clip, for readers of the files.
        clip: (start, end) in seconds, or `None` for the whole file.
        source_fingerprint: See `fingerprint.source_fingerprint`.
    """

    key: str
    video_id: str
    clip: tuple[float, float] | None
    source_fingerprint: str


def clip_columns(clip: ClipIdentity) -> dict[str, Any]:
    """Columns that identify a clip."""
    start, end = clip.clip or (None, None)
    return {
        "clip_key": clip.key,
        "video_id": clip.video_id,
        "clip_start": start,
        "clip_end": end,
        "source_fingerprint": clip.source_fingerprint,
    }


def identity_of(row: Mapping[str, Any]) -> ClipIdentity:
    """Identity of a row's clip, from the columns of `clip_columns`."""
    return ClipIdentity(row["clip_key"], row["video_id"], bounds(row), row["source_fingerprint"])


def sealed_table(
    row: Mapping[str, Any], schema: pa.Schema, cache: str, without: Sequence[str] = ()
) -> pa.Table:
    """One row with its checksum, sealed for the cache with this hash.

    Args:
        row: By column; what it lacks is null.
        schema: Of the table.
        cache: Hash of the cache.
        without: Columns that the checksum does not cover.
    """
    table = pa.Table.from_pylist([row], schema=schema)
    seal = _seal(table.drop_columns(list(without)), cache)
    at = schema.get_field_index(CHECKSUM)
    return table.set_column(at, schema.field(at), [[seal]])


def raise_unless_sealed(table: pa.Table, cache: str) -> None:
    """Raise `CacheError` if any column of a row differs from what was sealed."""
    if table[CHECKSUM][0].as_py() != _seal(table, cache):
        raise CacheError("checksum differs")


def guarded(read: Callable[[], pa.Table], check: Callable[[pa.Table], T], where: str) -> T:
    """Parse and check a row; all errors are converted to `CacheError`.

    Args:
        read: Parses bytes that are in memory, so that an `OSError` is about them.
        check: Raises `CacheError` with a clause about "it", or what wrong columns lead to.
        where: Its file, for messages.

    Raises:
        CacheError: In one line that begins with `where`.
    """
    try:
        table = read()
    except (pa.ArrowException, OSError, ValueError) as error:  # OSError: zstd, of damaged bytes
        raise CacheError(f"{where} cannot be read: {error}") from error
    try:
        return check(table)
    except KeyError as error:
        raise CacheError(f"{where} is damaged (it has no column {error})") from error
    except WRONG_VALUES as error:  # CacheError is a ValueError
        raise CacheError(f"{where} is damaged ({error})") from error


def the_row(table: pa.Table, version: int, key: str, cache: str) -> dict[str, Any]:
    """The only row of a table, after the checks that every kind of entry has.

    Args:
        table: With the columns `format_version`, `clip_key` and `checksum`.
        version: The format that the row must have.
        key: Of the clip.
        cache: Hash of the cache that it is in.

    Raises:
        CacheError: With a clause about "it".
    """
    if table.num_rows != 1:
        raise CacheError(f"it holds {table.num_rows} clips instead of one")
    (row,) = table.to_pylist()
    if row["format_version"] != version:
        raise CacheError(f"its format is {row['format_version']}, not {version}")
    if row[CHECKSUM].startswith(CRC_0_1):
        return dict(row)
    if (owner := row[CHECKSUM].partition(_OF)[2]) != cache:
        raise CacheError(f"it belongs to the cache with the hash {owner}")
    if row["clip_key"] != key:
        raise CacheError(f"it holds the clip {row['clip_key']}")
    return dict(row)


def _seal(table: pa.Table, cache: str) -> str:
    """Digest of all other columns, and the hash of the cache: catches damage, not malice."""
    covered = table.drop_columns([CHECKSUM]).replace_schema_metadata(None)
    return f"sha256:{digest_of(covered, {'cache': cache})}{_OF}{cache}"


def joined(tokens: Tensor, companions: Tensor | None) -> Tensor:
    """What is stored of some tokens.

    Args:
        tokens: (..., D).
        companions: (..., E, D), or `None`.

    Returns:
        (..., D), or (..., 1 + E, D) with the token first.
    """
    import torch  # here, because caches are listed without it

    if companions is None:
        return tokens
    return torch.cat([tokens[..., None, :], companions], dim=-2)


def parted(rows: Tensor, places: int) -> tuple[Tensor, Tensor | None]:
    """Tokens and companions of what is stored; the reverse of `joined`.

    Args:
        rows: With `places` axes before the (1 + E, D) or the D of every token.
        places: 1 for kept tokens (K, ...), 2 for all of a clip (T, L, ...).
    """
    if rows.ndim == places + 1:
        return rows, None
    return rows[..., 0, :].contiguous(), rows[..., 1:, :].contiguous()


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
