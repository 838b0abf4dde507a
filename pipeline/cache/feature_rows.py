"""One row of a feature cache: all tokens of a clip, or signals of it, and their checks.

The columns of tokens and signals are plain and not compressed. Every token has a CRC-32 of its own,
in `token_crcs`; `checksum` covers all other columns. With `stored_as` `"int8"` a token is stored as
8-bit levels and one scale: half the bytes of bfloat16, and other tokens.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from datetime import datetime
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
import numpy.typing as npt
import pyarrow as pa
from zlib_ng.zlib_ng import crc32

from pipeline.cache.names import SIGNALS, TOKENS
from pipeline.cache.rows import (
    CHECKSUM,
    CacheError,
    ClipIdentity,
    clip_columns,
    guarded,
    identity_of,
    joined,
    parted,
    raise_unless_sealed,
    sealed_table,
    the_row,
)
from pipeline.rows import source_columns, source_of
from tango_core.types import ClipSource

if TYPE_CHECKING:
    from torch import Tensor

    from tango_core.types import VisualFeatures

FEATURES_VERSION = 1
INT8 = "int8"

FeatureDtype = Literal["auto", "int8"]
"""How a feature cache stores tokens: as the encoder gave them, or in 8 bits."""

Levels = tuple["Tensor", "Tensor"]
"""What `quantise` gives."""

_LARGEST = 127

FEATURES_SCHEMA = pa.schema(
    [
        (TOKENS, pa.large_binary()),
        ("clip_key", pa.string()),
        ("video_id", pa.string()),
        ("clip_start", pa.float64()),
        ("clip_end", pa.float64()),
        ("source_fingerprint", pa.string()),
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
        *(
            column
            for name in SIGNALS
            for column in (
                (name, pa.large_binary()),
                (f"{name}_dtype", pa.string()),
                (f"{name}_shape", pa.list_(pa.int32())),
            )
        ),
        (CHECKSUM, pa.string()),
        ("decode_ms", pa.float64()),
        ("encode_ms", pa.float64()),
        ("created_at", pa.timestamp("us", tz="UTC")),
        ("format_version", pa.int32()),
    ]
)

FEATURE_WRITE_OPTIONS: Mapping[str, Any] = {
    "compression": "none",
    "use_dictionary": False,
    "write_statistics": False,
}


@dataclass(frozen=True)
class FeatureRow:
    """One entry of a feature cache, checked.

    Attributes:
        clip: Which clip it is of.
        tokens: (T, L, D) in the encoder's dtype; `None` for an entry that holds signals alone.
        companions: (T, L, E, D); `None` where the model has none.
        signals: (T, ...) tensors by name.
        grid: (H, W).
        timestamps: (T,) float64 seconds.
        sinks: See `VisualFeatures`.
        source: The clip as it is in its file; `None` if unknown.
        decode_video_ms: Time to decode the clip, in milliseconds; the column `decode_ms`.
        encode_ms: Time of the vision encoder.
        table: The row.
        sealed: Always; see `StoredClip`.
    """

    clip: ClipIdentity
    tokens: Tensor | None
    companions: Tensor | None
    signals: Mapping[str, Tensor]
    grid: tuple[int, int]
    timestamps: Tensor
    sinks: tuple[int, ...]
    source: ClipSource | None
    decode_video_ms: float
    encode_ms: float
    table: pa.Table
    sealed: bool = True


def quantise(tokens: Tensor) -> Levels:
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
    """The tokens that `quantise` stands for.

    Args:
        levels: (..., D) int8.
        scales: (...,) float32.
        dtype: Of the tokens, e.g. `"bfloat16"`.
    """
    import torch

    restored: Tensor = (levels.float() * scales[..., None]).to(getattr(torch, dtype))
    return restored


def rounded(features: VisualFeatures) -> tuple[VisualFeatures, Levels]:
    """Features as a store in 8 bits gives them back, and what it must store for that.

    Devices may divide differently in the last bit, and round to another level then. So tokens are
    rounded once, where they are; to multiply levels and scales is exact to the last bit everywhere.

    Returns:
        The features, and levels and scales of their tokens, with the companions joined to them.
    """
    levels = quantise(joined(features.tokens, features.companions))
    dtype = str(features.tokens.dtype).removeprefix("torch.")
    tokens, companions = parted(restore(*levels, dtype), places=2)
    return replace(features, tokens=tokens, companions=companions), levels


def tokens_table(
    clip: ClipIdentity,
    features: VisualFeatures,
    ms: tuple[float, float],
    *,
    stored_as: str,
    created_at: datetime,
    cache: str,
    rounded: Levels | None = None,
) -> pa.Table:
    """The entry of a clip's tokens.

    Args:
        clip: Which clip.
        features: Of the clip.
        ms: Times to decode and to encode, in milliseconds.
        stored_as: `"auto"` for the dtype of the tokens, or `"int8"`.
        created_at: With its time zone.
        cache: Hash of the cache that it is written to.
        rounded: The tokens and companions in 8 bits as `rounded` gave them, so that they are not
            rounded a second time on another device; `None` to round them here.
    """
    whole = joined(features.tokens, features.companions)
    dtype = str(whole.dtype).removeprefix("torch.")
    scales = None
    if stored_as == INT8:
        whole, scales = rounded or quantise(whole.detach())
    data = _bytes_of(whole.reshape(whole.shape[0] * whole.shape[1], -1))
    crcs = _crcs_of(data)
    row = {
        **_common(clip, features, ms, created_at),
        TOKENS: data.reshape(-1),
        "dtype": dtype,
        "stored_as": INT8 if stored_as == INT8 else dtype,
        "shape": list(whole.shape),
        "scales": None if scales is None else scales.cpu().numpy().tobytes(),
        "token_crcs": crcs.tobytes(),
        "tokens_digest": hashlib.sha256(crcs.tobytes()).hexdigest()[:32],
    }
    return _sealed(row, cache)


def signals_table(
    clip: ClipIdentity,
    features: VisualFeatures,
    signals: Mapping[str, Tensor],
    ms: tuple[float, float],
    *,
    created_at: datetime,
    cache: str,
) -> pa.Table:
    """The entry of some signals of a clip; for the arguments see `tokens_table`."""
    row = _common(clip, features, ms, created_at)
    for name, value in signals.items():
        row[name] = _bytes_of(value.reshape(len(value), -1)).tobytes()
        row[f"{name}_dtype"] = str(value.dtype).removeprefix("torch.")
        row[f"{name}_shape"] = list(value.shape)
    return _sealed(row, cache)


def _common(
    clip: ClipIdentity,
    features: VisualFeatures,
    ms: tuple[float, float],
    created_at: datetime,
) -> dict[str, Any]:
    return {
        **clip_columns(clip),
        "grid": list(features.grid),
        "timestamps": features.timestamps.cpu().tolist(),
        "sinks": list(features.sinks),
        **source_columns(features.source),
        "decode_ms": ms[0],
        "encode_ms": ms[1],
        "created_at": created_at,
        "format_version": FEATURES_VERSION,
    }


def _sealed(row: dict[str, Any], cache: str) -> pa.Table:
    """A row with its checksum, which covers every column but the tokens."""
    tokens = row.pop(TOKENS, None)
    table = sealed_table(row, FEATURES_SCHEMA, cache, without=(TOKENS,))
    if tokens is None:
        return table
    # Not through Python objects, which would copy all tokens twice.
    offsets = pa.py_buffer(np.array([0, len(tokens)], np.int64))
    column = pa.Array.from_buffers(pa.large_binary(), 1, [None, offsets, pa.py_buffer(tokens)])
    return table.set_column(0, FEATURES_SCHEMA.field(0), column)


def read_row(read: Callable[[], pa.Table], key: str, cache: str, where: str) -> FeatureRow:
    """Parse an entry and check it.

    Args:
        read: Parses bytes that are in memory.
        key: Of the clip.
        cache: Hash of the cache that the entry is in.
        where: Its file, for messages.

    Raises:
        CacheError: If it is damaged, of another format, or of another clip.
    """
    return guarded(read, lambda table: _checked(table, key, cache), where)


def _checked(table: pa.Table, key: str, cache: str) -> FeatureRow:
    """Rebuild an entry from its row; the message of a `CacheError` is a clause about "it"."""
    import torch

    small = table.drop_columns([TOKENS])
    row = the_row(small, FEATURES_VERSION, key, cache)
    raise_unless_sealed(small, cache)
    tokens = companions = None
    if row["shape"] is not None:
        tokens, companions = parted(_tokens(table, row), places=2)
    signals = {
        name: torch.frombuffer(
            bytearray(row[name]), dtype=getattr(torch, row[f"{name}_dtype"])
        ).reshape(row[f"{name}_shape"])
        for name in SIGNALS
        if row[name] is not None
    }
    height, width = row["grid"]
    return FeatureRow(
        clip=identity_of(row),
        tokens=tokens,
        companions=companions,
        signals=signals,
        grid=(height, width),
        timestamps=torch.tensor(row["timestamps"], dtype=torch.float64),
        sinks=tuple(row["sinks"]),
        source=source_of(row),
        decode_video_ms=row["decode_ms"],
        encode_ms=row["encode_ms"],
        table=table,
    )


def _tokens(table: pa.Table, row: Mapping[str, Any]) -> Tensor:
    """(T, L, D), or (T, L, 1 + E, D) where companions follow every token."""
    import torch

    shape = row["shape"]
    if len(shape) not in (3, 4):
        raise CacheError(f"its tokens have shape {tuple(shape)}")
    kind: torch.dtype = getattr(torch, row["stored_as"])
    data, num_tokens = table[TOKENS][0].as_buffer(), shape[0] * shape[1]
    if data is None or data.size != math.prod(shape) * kind.itemsize:
        raise CacheError(f"its tokens are not {tuple(shape)} {row['stored_as']}")
    # A copy, because nobody may write to memory of Arrow, and torch cannot be kept from it.
    stored = np.frombuffer(data, np.uint8).copy()
    crcs = np.frombuffer(row["token_crcs"], np.uint32)
    if len(crcs) != num_tokens:
        raise CacheError(f"it has {len(crcs)} checksums for {num_tokens} tokens")
    wrong = np.flatnonzero(_crcs_of(stored.reshape(num_tokens, -1)) != crcs)
    if len(wrong):
        raise CacheError(f"checksum of token {wrong[0]} differs")
    tokens = torch.from_numpy(stored).view(kind).reshape(shape)
    if row["scales"] is None:
        return tokens
    scales = torch.frombuffer(bytearray(row["scales"]), dtype=torch.float32).reshape(shape[:-1])
    return restore(tokens, scales, row["dtype"])


def _crcs_of(rows: npt.NDArray[np.uint8]) -> npt.NDArray[np.uint32]:
    """(N,) CRC-32 of each of N rows of bytes."""
    return np.fromiter((crc32(row.data) for row in rows), np.uint32, len(rows))


def _bytes_of(tensor: Tensor) -> npt.NDArray[np.uint8]:
    """(N, row_bytes) of an (N, D) tensor; numpy has no bfloat16."""
    import torch

    return tensor.detach().cpu().contiguous().view(torch.uint8).numpy()
