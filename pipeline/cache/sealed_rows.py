"""What every kind of entry has in common: which clip it is of, and a seal over its columns."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

import pyarrow as pa

from pipeline.rows import bounds
from pipeline.seal import digest_of

CHECKSUM = "checksum"
CRC_0_1 = "crc32:"
_OF = "@"

T = TypeVar("T")

# What columns that are empty, of another type or of another length lead to.
WRONG_VALUES = (TypeError, ValueError, AttributeError, RuntimeError, OverflowError, MemoryError)


class CacheError(ValueError):
    """A cache entry or directory is not what it should be."""


@dataclass(frozen=True)
class ClipIdentity:
    """Which clip of which file an entry belongs to.

    Attributes:
        key: See `fingerprint.clip_key`.
        video_id: The benchmark's name for the clip, for people who read the files.
        clip: (start, end) in seconds, or `None` for the whole file.
        source_fingerprint: See `fingerprint.source_fingerprint`.
    """

    key: str
    video_id: str
    clip: tuple[float, float] | None
    source_fingerprint: str


def clip_columns(clip: ClipIdentity) -> dict[str, Any]:
    """Which clip a row is about."""
    start, end = clip.clip or (None, None)
    return {
        "clip_key": clip.key,
        "video_id": clip.video_id,
        "clip_start": start,
        "clip_end": end,
        "source_fingerprint": clip.source_fingerprint,
    }


def identity_of(row: Mapping[str, Any]) -> ClipIdentity:
    """Which clip a row is about, by the columns of `clip_columns`."""
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
    """Parse a row and check it; whatever is wrong with it becomes a `CacheError`.

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
