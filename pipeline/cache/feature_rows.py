"""One row of a feature cache: all tokens of a clip, or signals of it, and their checks.

The columns of tokens and signals are plain and not compressed, and the tokens come first in a file:
so the rows of single tokens are read where they are, and one request at the end of the file brings
everything else. Every token has a CRC-32 of its own, in `token_crcs`, for readers of some tokens.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa

from pipeline.cache.companions import joined
from pipeline.cache.names import SIGNALS, TOKENS
from pipeline.cache.quantised import Levels, quantise
from pipeline.cache.sealed_rows import (
    CHECKSUM,
    CacheError,
    ClipIdentity,
    clip_columns,
    guarded,
    identity_of,
    raise_unless_sealed,
    sealed_table,
    the_row,
)
from pipeline.cache.token_layout import INT8, TokenLayout, bytes_of, crcs_of
from pipeline.rows import source_columns, source_of
from tango_core.types import ClipSource

if TYPE_CHECKING:
    from torch import Tensor

    from tango_core.types import VisualFeatures

FEATURES_VERSION = 1

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
# Not the tokens: those have checksums of their own.
SMALL_COLUMNS = [name for name in FEATURES_SCHEMA.names if name != TOKENS]

FEATURE_WRITE_OPTIONS: Mapping[str, Any] = {
    "compression": "none",
    "use_dictionary": False,
    "write_statistics": False,
}


@dataclass(frozen=True)
class FeatureRow:
    """One entry of a feature cache, without its tokens, checked.

    Attributes:
        clip: Which clip it is of.
        tokens: How the tokens are stored; `None` for an entry that holds signals alone.
        signals: (T, ...) tensors by name.
        grid: (H, W).
        timestamps: (T,) float64 seconds.
        sinks: See `VisualFeatures`.
        source: The clip as it is in its file; `None` if unknown.
        decode_video_ms: Time to decode the clip, in milliseconds; the column `decode_ms`.
        encode_ms: Time of the vision encoder.
        table: The row, without the tokens unless they were read with it.
        sealed: Always; see `StoredClip`.
    """

    clip: ClipIdentity
    tokens: TokenLayout | None
    signals: Mapping[str, Tensor]
    grid: tuple[int, int]
    timestamps: Tensor
    sinks: tuple[int, ...]
    source: ClipSource | None
    decode_video_ms: float
    encode_ms: float
    table: pa.Table
    sealed: bool = True


def tokens_table(
    clip: ClipIdentity,
    features: VisualFeatures,
    ms: tuple[float, float],
    *,
    stored_as: str,
    created_at: datetime,
    cache: str,
    rounded: Levels | None = None,
) -> tuple[pa.Table, TokenLayout]:
    """The entry of a clip's tokens, and how they are stored in it.

    Args:
        clip: Which clip.
        features: Of the clip.
        ms: Times to decode and to encode, in milliseconds.
        stored_as: `"auto"` for the dtype of the tokens, or `"int8"`.
        created_at: With its time zone.
        cache: Hash of the cache that it is written to.
        rounded: The tokens and companions in 8 bits as `quantised.rounded` gave them, so that they
            are not rounded a second time on another device; `None` to round them here.
    """
    whole = joined(features.tokens, features.companions)
    dtype = str(whole.dtype).removeprefix("torch.")
    scales = None
    if stored_as == INT8:
        whole, scales = rounded or quantise(whole.detach())
        scales = scales.flatten(0, 1).cpu()
    stored = whole.detach().flatten(0, 1).cpu()
    data = bytes_of(stored.reshape(len(stored), -1))
    crcs = crcs_of(data, len(data))
    digest = hashlib.sha256(crcs.tobytes()).hexdigest()[:32]
    shape = tuple(whole.shape)
    layout = TokenLayout(dtype, INT8 if stored_as == INT8 else dtype, shape, scales, crcs, digest)
    row = {
        **_common(clip, features, ms, created_at),
        TOKENS: data.reshape(-1),
        "dtype": dtype,
        "stored_as": layout.stored_as,
        "shape": list(shape),
        "scales": None if scales is None else scales.numpy().tobytes(),
        "token_crcs": crcs.tobytes(),
        "tokens_digest": digest,
    }
    return _sealed(row, cache), layout


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
        row[name] = bytes_of(value.reshape(len(value), -1)).tobytes()
        row[f"{name}_dtype"] = str(value.dtype).removeprefix("torch.")
        row[f"{name}_shape"] = list(value.shape)
    return _sealed(row, cache)


def _common(
    clip: ClipIdentity,
    features: VisualFeatures,
    ms: tuple[float, float],
    created_at: datetime,
) -> dict[str, Any]:
    """What every entry of a clip says."""
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
    """Parse an entry and check it: all of it if the column of the tokens was read, too.

    Args:
        read: Parses bytes that are in memory, with the `SMALL_COLUMNS` or all.
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

    small = table.select(SMALL_COLUMNS)
    row = the_row(small, FEATURES_VERSION, key, cache)
    raise_unless_sealed(small, cache)
    layout = _layout(row)
    if TOKENS in table.column_names and layout is not None:
        data = table[TOKENS][0].as_buffer()
        if data is None or data.size != layout.num_tokens * layout.row_bytes:
            raise CacheError(f"its tokens are not {layout.shape} {layout.stored_as}")
        stored = np.frombuffer(data, np.uint8).reshape(layout.num_tokens, layout.row_bytes)
        layout.raise_if_damaged(stored, np.arange(layout.num_tokens))
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
        tokens=layout,
        signals=signals,
        grid=(height, width),
        timestamps=torch.tensor(row["timestamps"], dtype=torch.float64),
        sinks=tuple(row["sinks"]),
        source=source_of(row),
        decode_video_ms=row["decode_ms"],
        encode_ms=row["encode_ms"],
        table=table,
    )


def _layout(row: Mapping[str, Any]) -> TokenLayout | None:
    """How the tokens of a row are stored; `None` if it holds none."""
    import torch

    if row["shape"] is None:
        return None
    shape = tuple(row["shape"])
    scales = row["scales"]
    if len(shape) not in (3, 4):
        raise CacheError(f"its tokens have shape {shape}")
    layout = TokenLayout(
        dtype=row["dtype"],
        stored_as=row["stored_as"],
        shape=shape,
        scales=None
        if scales is None
        else torch.frombuffer(bytearray(scales), dtype=torch.float32).reshape(-1, *shape[2:-1]),
        crcs=np.frombuffer(row["token_crcs"], np.uint32),
        digest=row["tokens_digest"],
    )
    if len(layout.crcs) != layout.num_tokens:
        raise CacheError(f"it has {len(layout.crcs)} checksums for {layout.num_tokens} tokens")
    return layout
