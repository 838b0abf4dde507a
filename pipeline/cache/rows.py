"""Rows of both kinds of entry, token sets and features, and the checks of every reader.

Tensors are stored as bytes with their dtype and shape beside them, because bfloat16 has no NumPy
type; plain pandas, pyarrow and DuckDB read every column without torch. Tokens of models with
companions (DeepStack) have one more axis, with the token first. The checksum of a row covers all
other columns. Feature tokens are neither compressed nor covered by it: every token has a CRC-32 of
its own in `token_crcs`. With `stored_as` `"int8"` a token is 8-bit levels and one scale.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
import numpy.typing as npt
import pyarrow as pa
from zlib_ng.zlib_ng import crc32

from pipeline.cache.names import FRAME_MAP, LARGE_SIGNALS, SIGNALS, TOKENS
from pipeline.clips import bounds
from pipeline.storage.seal import DAMAGE, digest_of
from tango_core.errors import InputError
from tango_core.types import ClipSource, CompressedVideo

if TYPE_CHECKING:  # caches are listed without torch
    from torch import Tensor

    from tango_core.types import VisualFeatures

FORMAT_VERSION = 1
INT8 = "int8"
_CRC_0_1 = "crc32:"  # how the checksums of release 0.1 begin
_LARGEST = 127

FeatureDtype = Literal["auto", "int8"]
"""How a feature cache stores tokens: as the encoder computed them, or in 8 bits."""

Levels = tuple["Tensor", "Tensor | None"]
"""Stored tokens, and their scales if they are in 8 bits (`quantise`)."""

_IDENTITY = [
    ("clip_key", pa.string()),
    ("video_id", pa.string()),
    ("clip_start", pa.float64()),
    ("clip_end", pa.float64()),
    ("source_fingerprint", pa.string()),
]
SCHEMA = pa.schema(
    [
        *_IDENTITY,
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


def _signal_columns(name: str) -> list[tuple[str, pa.DataType]]:
    return [
        (name, pa.large_binary()),
        (f"{name}_dtype", pa.string()),
        (f"{name}_shape", pa.list_(pa.int32())),
    ]


FEATURES_SCHEMA = pa.schema(
    [
        (TOKENS, pa.large_binary()),
        *_IDENTITY,
        ("dtype", pa.string()),
        ("stored_as", pa.string()),
        ("shape", pa.list_(pa.int32())),
        ("scales", pa.large_binary()),
        ("token_crcs", pa.large_binary()),
        ("tokens_digest", pa.string()),
        ("grid", pa.list_(pa.int32())),
        ("timestamps", pa.list_(pa.float64())),
        ("sinks", pa.list_(pa.int32())),
        ("duration_s", pa.float64()),
        ("frame_height", pa.int32()),
        *(column for name in SIGNALS for column in _signal_columns(name)),
        ("checksum", pa.string()),
        ("decode_ms", pa.float64()),
        ("encode_ms", pa.float64()),
        ("created_at", pa.timestamp("us", tz="UTC")),
        ("format_version", pa.int32()),
    ]
)
# Token bytes are nearly random: dictionaries and statistics cost time and save nothing.
_PLAIN: Mapping[str, Any] = {"use_dictionary": False, "write_statistics": False}
WRITE_OPTIONS: Mapping[str, Any] = {"compression": "zstd", "compression_level": 1, **_PLAIN}
FEATURE_WRITE_OPTIONS: Mapping[str, Any] = {"compression": "none", **_PLAIN}


class CacheError(InputError):
    """A cache entry or directory is damaged or does not match its name."""


@contextmanager
def damage_named(where: str) -> Iterator[None]:
    """Convert errors caused by damaged files into `CacheError`; storage errors are re-raised.

    Args:
        where: The file, with which the one-line message begins.
    """
    try:
        yield
    except (CacheError, FileNotFoundError, ConnectionError, TimeoutError, PermissionError):
        raise
    except (*DAMAGE, IndexError, AttributeError, RuntimeError) as error:
        if isinstance(error, OSError) and error.errno is not None:  # not of zstd or of a footer
            raise
        reason = " ".join(str(error).split()) or type(error).__name__
        if isinstance(error, KeyError):
            reason = f"it has no column {reason}"
        raise CacheError(f"{where} is damaged ({reason})") from error


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


@dataclass(frozen=True)
class Entry:
    """A token set.

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
    """A checked row of a cache.

    Attributes:
        clip: Which clip it belongs to.
        entry: The `Entry`; in a feature cache the arguments of `VisualFeatures` that the row holds
            (only that of a clip's tokens has `tokens`).
        table: The row.
    """

    clip: ClipIdentity
    entry: Any
    table: pa.Table


def clip_columns(clip: ClipIdentity) -> dict[str, Any]:
    """Columns that identify a clip."""
    values = (clip.key, clip.video_id, *(clip.clip or (None, None)), clip.source_fingerprint)
    return dict(zip([name for name, _ in _IDENTITY], values, strict=True))


def identity_of(row: Mapping[str, Any]) -> ClipIdentity:
    """Identity of a row's clip, from the columns of `clip_columns`."""
    return ClipIdentity(row["clip_key"], row["video_id"], bounds(row), row["source_fingerprint"])


def to_table(clip: ClipIdentity, entry: Entry, cache: str) -> pa.Table:
    """A token set as a row of `SCHEMA`, sealed for the cache with this hash."""
    video = entry.video
    stored = _joined(video.tokens, video.companions)
    row = {
        **_common(clip, video, (entry.decode_video_ms, entry.encode_ms)),
        "indices": video.indices.cpu().tolist(),
        "tokens": _bytes_of(stored).tobytes(),
        "dtype": _dtype_name(video.tokens),
        "shape": list(stored.shape),
        "num_tokens_total": video.num_total,
        "num_tokens_kept": video.num_kept,
        "compress_ms": entry.compress_ms,
    }
    return _sealed_table(row, SCHEMA, cache)


def features_table(
    clip: ClipIdentity,
    features: VisualFeatures,
    signals: Iterable[str],
    ms: tuple[float, float],
    cache: str,
    tokens: Levels | None = None,
) -> pa.Table:
    """A row with some tensors of a clip's features.

    Args:
        clip: Which clip.
        features: Features of the clip.
        signals: Names of the tensors; those that are not in the schema get columns of their own.
        ms: Times to decode and to encode, in milliseconds.
        cache: Hash of the cache that it is written to.
        tokens: The tokens, if the row holds them, from `levels_of`.
    """
    row = {**_common(clip, features, ms), "sinks": list(features.sinks)}
    schema = FEATURES_SCHEMA
    for name in signals:
        value = getattr(features, name)
        values = _bytes_of(value).tobytes(), _dtype_name(value), list(value.shape)
        for (column, kind), one in zip(_signal_columns(name), values, strict=True):
            row[column] = one
            schema = schema if column in schema.names else schema.append(pa.field(column, kind))
    if tokens is None:
        return _sealed_table(row, schema, cache, without=(TOKENS,))
    levels, scales = tokens
    data = _bytes_of(levels.reshape(levels.shape[0] * levels.shape[1], -1))
    crcs = _crcs_of(data).tobytes()
    row |= {
        "dtype": _dtype_name(features.tokens),
        "stored_as": _dtype_name(levels),
        "shape": list(levels.shape),
        "scales": None if scales is None else scales.cpu().numpy().tobytes(),
        "token_crcs": crcs,
        "tokens_digest": hashlib.sha256(crcs).hexdigest()[:32],
    }
    table = _sealed_table(row, schema, cache, without=(TOKENS,))
    # Not through Python objects, which would copy all tokens twice.
    offsets = pa.py_buffer(np.array([0, data.size], np.int64))
    buffers = [None, offsets, pa.py_buffer(data.reshape(-1))]
    column = pa.Array.from_buffers(pa.large_binary(), 1, buffers)
    return table.set_column(0, FEATURES_SCHEMA.field(0), column)


def levels_of(features: VisualFeatures, stored_as: str) -> Levels:
    """Tokens with the companions joined to them, as stored: unchanged, or in 8 bits."""
    whole = _joined(features.tokens, features.companions).detach()
    return quantise(whole) if stored_as == INT8 else (whole, None)


def checked_tokens(table: pa.Table, key: str, cache: str) -> StoredClip:
    """Rebuild a token set from its row and check it.

    Args:
        table: The row.
        key: Expected key of the clip.
        cache: Hash of the cache that the row is in.

    Raises:
        ValueError: If it is damaged, of another format, or of another clip; the message is a clause
            about "it". Wrong columns raise other errors; see `damage_named`.
    """
    row = _the_row(table, key, cache)
    sealed = not row["checksum"].startswith(_CRC_0_1)
    if not sealed:
        indices = np.asarray(row["indices"], dtype=np.int32).tobytes()
        if row["checksum"] != f"{_CRC_0_1}{crc32(indices, crc32(row['tokens'])):08x}":
            raise InputError("checksum differs")
    import torch

    tokens = _tensor(row["tokens"], row["dtype"], row["shape"])
    tokens, companions = _parted(tokens, axes=1)
    frames, height, width = row["grid"]
    video = CompressedVideo(
        tokens=tokens,
        indices=torch.tensor(row["indices"], dtype=torch.int64),
        grid=(frames, height, width),
        timestamps=torch.tensor(row["timestamps"], dtype=torch.float64),
        source=_source_of(row),
        companions=companions,
    )
    if (row["num_tokens_kept"], row["num_tokens_total"]) != (video.num_kept, video.num_total):
        raise InputError("its token counts differ from its tokens")
    # Last, because the other messages are more specific.
    if sealed and row["checksum"] != _seal(table, cache):
        raise InputError("checksum differs")
    entry = Entry(video, row["decode_ms"], row["encode_ms"], row["compress_ms"])
    return StoredClip(identity_of(row), entry, table)


def checked_features(table: pa.Table, key: str, cache: str) -> StoredClip:
    """Rebuild a row of a feature cache and check it; see `checked_tokens`."""
    import torch

    small = table.drop_columns([TOKENS])
    row = _the_row(small, key, cache)
    if row["checksum"] != _seal(small, cache):
        raise InputError("checksum differs")
    content = {
        "grid": tuple(row["grid"]),
        "timestamps": torch.tensor(row["timestamps"], dtype=torch.float64),
        "sinks": tuple(row["sinks"]),
        "source": _source_of(row),
    }
    for name in (*SIGNALS, *LARGE_SIGNALS, *FRAME_MAP):
        if row.get(name) is not None:
            content[name] = _tensor(row[name], row[f"{name}_dtype"], row[f"{name}_shape"])
    if row["shape"] is not None:
        tokens, companions = _parted(_feature_tokens(table, row), axes=2)
        content |= {TOKENS: tokens, "companions": companions}
    return StoredClip(identity_of(row), content, table)


def quantise(tokens: Tensor) -> tuple[Tensor, Tensor]:
    """Round every token to 255 levels between its own largest magnitude and its negative.

    Args:
        tokens: (..., D), any float dtype, finite.

    Returns:
        (..., D) int8, and (...,) float32 scales: a value is its level times its token's scale.
    """
    import torch

    values = tokens.float()
    scales = values.abs().amax(dim=-1) / _LARGEST
    levels = values / scales.clamp(min=torch.finfo(torch.float32).tiny)[..., None]
    return levels.round().clamp(-_LARGEST, _LARGEST).to(torch.int8), scales


def restore(levels: Tensor, scales: Tensor, dtype: str) -> Tensor:
    """The tokens that `quantise` represents.

    Args:
        levels: (..., D) int8.
        scales: (...,) float32.
        dtype: Dtype of the tokens, e.g. `"bfloat16"`.
    """
    import torch

    restored: Tensor = (levels.float() * scales[..., None]).to(getattr(torch, dtype))
    return restored


def rounded(features: VisualFeatures) -> tuple[VisualFeatures, Levels]:
    """Features as an 8-bit store returns them, and what it must store for that.

    Devices may divide differently in the last bit and round to another level. So tokens are rounded
    once, on their device; multiplying levels and scales is exact to the last bit everywhere.

    Returns:
        The features, and levels and scales of their tokens, with the companions joined to them.
    """
    levels, scales = quantise(_joined(features.tokens, features.companions))
    tokens, companions = _parted(restore(levels, scales, _dtype_name(features.tokens)), axes=2)
    return replace(features, tokens=tokens, companions=companions), (levels, scales)


def _common(
    clip: ClipIdentity, content: CompressedVideo | VisualFeatures, ms: tuple[float, float]
) -> dict[str, Any]:
    """Columns of both kinds of entry."""
    return {
        **clip_columns(clip),
        "grid": list(content.grid),
        "timestamps": content.timestamps.cpu().tolist(),
        **(asdict(content.source) if content.source else {}),
        "decode_ms": ms[0],
        "encode_ms": ms[1],
        "created_at": datetime.now(UTC),
        "format_version": FORMAT_VERSION,
    }


def _sealed_table(
    row: Mapping[str, Any], schema: pa.Schema, cache: str, without: Sequence[str] = ()
) -> pa.Table:
    """One row with its checksum, which does not cover the columns `without`."""
    table = pa.Table.from_pylist([row], schema=schema)
    at = schema.get_field_index("checksum")
    seal = _seal(table.drop_columns(list(without)), cache)
    return table.set_column(at, schema.field(at), [[seal]])


def _seal(table: pa.Table, cache: str) -> str:
    """Digest of all other columns, and the hash of the cache: detects damage, not malice."""
    covered = table.drop_columns(["checksum"]).replace_schema_metadata(None)
    return f"sha256:{digest_of(covered, {'cache': cache})}@{cache}"


def _the_row(table: pa.Table, key: str, cache: str) -> dict[str, Any]:
    """The only row of a table, after the checks that both kinds of entry share."""
    if table.num_rows != 1:
        raise InputError(f"it holds {table.num_rows} clips instead of one")
    row: dict[str, Any] = table.to_pylist()[0]
    if row["format_version"] != FORMAT_VERSION:
        raise InputError(f"its format is {row['format_version']}, not {FORMAT_VERSION}")
    is_of_0_1 = row["checksum"].startswith(_CRC_0_1)
    if not is_of_0_1 and (owner := row["checksum"].partition("@")[2]) != cache:
        raise InputError(f"it belongs to the cache with the hash {owner}")
    if row["clip_key"] != key:
        raise InputError(f"it holds the clip {row['clip_key']}")
    return row


def _feature_tokens(table: pa.Table, row: Mapping[str, Any]) -> Tensor:
    """(T, L, D), or (T, L, 1 + E, D) where companions follow every token."""
    import torch

    # A copy, because memory of Arrow must not be written to, and torch cannot be kept from it.
    stored = np.frombuffer(table[TOKENS][0].as_buffer(), np.uint8).copy()
    crcs, shape = np.frombuffer(row["token_crcs"], np.uint32), row["shape"]
    wrong = np.flatnonzero(_crcs_of(stored.reshape(len(crcs), -1)) != crcs)
    if len(wrong):
        raise InputError(f"checksum of token {wrong[0]} differs")
    tokens = torch.from_numpy(stored).view(getattr(torch, row["stored_as"])).reshape(shape)
    if row["scales"] is None:
        return tokens
    return restore(tokens, _tensor(row["scales"], "float32", shape[:-1]), row["dtype"])


def _joined(tokens: Tensor, companions: Tensor | None) -> Tensor:
    """(..., D), or (..., 1 + E, D) with the token first if there are companions (..., E, D)."""
    import torch

    if companions is None:
        return tokens
    return torch.cat([tokens[..., None, :], companions], dim=-2)


def _parted(rows: Tensor, axes: int) -> tuple[Tensor, Tensor | None]:
    """Tokens and companions; the reverse of `_joined` for tokens with `axes` axes before D."""
    if rows.ndim == axes + 1:
        return rows, None
    return rows[..., 0, :].contiguous(), rows[..., 1:, :].contiguous()


def _source_of(row: Mapping[str, Any]) -> ClipSource | None:
    duration, height = row["duration_s"], row["frame_height"]
    return None if duration is None or height is None else ClipSource(duration, height)


def _tensor(data: bytes, dtype: str, shape: Sequence[int]) -> Tensor:
    """A tensor from its bytes."""
    import torch

    kind = getattr(torch, dtype)
    flat = torch.frombuffer(bytearray(data), dtype=kind) if data else torch.empty(0, dtype=kind)
    return flat.reshape(list(shape))


def _bytes_of(tensor: Tensor) -> npt.NDArray[np.uint8]:
    """The bytes of a tensor; NumPy has no bfloat16."""
    import torch

    return tensor.detach().cpu().contiguous().view(torch.uint8).numpy()


def _crcs_of(rows: npt.NDArray[np.uint8]) -> npt.NDArray[np.uint32]:
    """(N,) CRC-32 of each of N rows of bytes."""
    return np.fromiter((crc32(row.data) for row in rows), np.uint32, len(rows))


def _dtype_name(tensor: Tensor) -> str:
    return str(tensor.dtype).removeprefix("torch.")
