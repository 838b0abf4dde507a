"""A token set as the map that makes it from the clip's features: one row, kilobytes.

The columns are those of a token set, with `tokens` null, and those that hold the map
(`tango_core.Combination`) and what a viewer draws beside it. The tokens are put together when the
set is read, from the features that the map was made for: `tokens_digest` says which.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa

from pipeline.cache.rows import SCHEMA
from pipeline.cache.sealed_rows import (
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
from tango_core.types import ClipSource

if TYPE_CHECKING:
    from torch import Tensor

    from tango_core.combination import Combination, Drawing

PLAN_VERSION = 2

PLAN_SCHEMA = pa.schema(
    [
        *SCHEMA,
        ("features", pa.string()),
        ("tokens_digest", pa.string()),
        ("offsets", pa.list_(pa.int32())),
        ("sources", pa.list_(pa.int32())),
        ("weights", pa.list_(pa.float32())),
        ("segments", pa.list_(pa.int32())),
        ("static", pa.large_binary()),
        ("saliency", pa.large_binary()),
        ("saliency_range", pa.list_(pa.float32())),
    ]
)
# As Python lists these would take longer than all the rest of a row.
_ARRAYS = ["indices", "offsets", "sources", "weights"]


class OutdatedPlanError(CacheError):
    """A plan for other tokens than the feature store holds now, or for tokens that have gone.

    Nothing is damaged: an encoder gives other bits on another device, and features that were
    removed may have been encoded again there.
    """


@dataclass(frozen=True)
class PlanEntry:
    """A token set that is stored as a plan.

    Attributes:
        plan: The map, on the CPU.
        features: Name of the feature cache that holds the clip's tokens.
        tokens_digest: Of the clip's tokens there.
        dtype: Of the tokens that it makes, e.g. `"bfloat16"`.
        width: D of the tokens.
        source: The clip as it is in its file; `None` if unknown.
        decode_video_ms: Time to decode the clip, in milliseconds; the column `decode_ms`.
        encode_ms: Time of the vision encoder.
        compress_ms: Time to make the plan.
    """

    plan: Combination
    features: str
    tokens_digest: str
    dtype: str
    width: int
    source: ClipSource | None
    decode_video_ms: float
    encode_ms: float
    compress_ms: float


@dataclass(frozen=True)
class StoredPlan:
    """A plan as it is in its file, checked; whether its features are there is not.

    Attributes:
        clip: Which clip it is of.
        entry: The plan.
        table: The same as one row with the columns of `PLAN_SCHEMA`.
    """

    clip: ClipIdentity
    entry: PlanEntry
    table: pa.Table
    sealed: bool = True


def plan_to_table(
    clip: ClipIdentity, entry: PlanEntry, created_at: datetime, cache: str
) -> pa.Table:
    """A plan as one row with the columns of `PLAN_SCHEMA`, sealed for the cache with this hash."""
    plan = entry.plan
    row = {
        **clip_columns(clip),
        "indices": plan.indices.numpy(),
        "dtype": entry.dtype,
        "shape": [plan.num_kept, entry.width],
        "grid": list(plan.grid),
        "timestamps": plan.timestamps.tolist(),
        **source_columns(entry.source),
        "num_tokens_total": plan.num_total,
        "num_tokens_kept": plan.num_kept,
        "decode_ms": entry.decode_video_ms,
        "encode_ms": entry.encode_ms,
        "compress_ms": entry.compress_ms,
        "created_at": created_at,
        "format_version": PLAN_VERSION,
        "features": entry.features,
        "tokens_digest": entry.tokens_digest,
        "offsets": None if plan.offsets is None else plan.offsets.numpy(),
        "sources": None if plan.sources is None else plan.sources.numpy(),
        "weights": None if plan.weights is None else plan.weights.numpy(),
        **_drawing_columns(plan.drawing),
    }
    return sealed_table(row, PLAN_SCHEMA, cache)


def _drawing_columns(drawing: Drawing | None) -> dict[str, Any]:
    """What a viewer draws, as columns."""
    if drawing is None:
        return {}
    scale = drawing.saliency_range
    return {
        "segments": list(drawing.segments),
        "static": None if drawing.static is None else drawing.static.numpy().tobytes(),
        "saliency": None if drawing.saliency is None else drawing.saliency.numpy().tobytes(),
        "saliency_range": None if scale is None else scale.tolist(),
    }


def read_plan(read: Callable[[], pa.Table], key: str, cache: str, where: str) -> StoredPlan:
    """Parse a plan's row and check it; see `rows.read_checked`.

    Raises:
        CacheError: If it is damaged, of another format, or another clip.
    """
    return guarded(read, lambda table: _checked(table, key, cache), where)


def _checked(table: pa.Table, key: str, cache: str) -> StoredPlan:
    """Rebuild a plan from its row; the message of a `CacheError` is a clause about "it"."""
    import torch

    from tango_core.combination import Combination

    row = the_row(table.drop_columns(_ARRAYS), PLAN_VERSION, key, cache)
    raise_unless_sealed(table, cache)  # first, because the map is checked only by being applied
    frames, height, width = row["grid"]
    arrays = {name: _array(table, name) for name in _ARRAYS}
    indices = arrays["indices"]
    if indices is None:
        raise CacheError("it names no tokens")
    timestamps = torch.tensor(row["timestamps"], dtype=torch.float64)
    plan = Combination(
        indices,
        (frames, height, width),
        timestamps,
        offsets=arrays["offsets"],
        sources=arrays["sources"],
        weights=arrays["weights"],
        drawing=_drawing(row),
    )
    entry = PlanEntry(
        plan=plan,
        features=row["features"],
        tokens_digest=row["tokens_digest"],
        dtype=row["dtype"],
        width=row["shape"][1],
        source=source_of(row),
        decode_video_ms=row["decode_ms"],
        encode_ms=row["encode_ms"],
        compress_ms=row["compress_ms"],
    )
    return StoredPlan(identity_of(row), entry, table)


def _array(table: pa.Table, name: str) -> Tensor | None:
    """A list of numbers, positions as int64; `None` if the row has none."""
    import torch

    column = table[name].combine_chunks()
    if not column[0].is_valid:
        return None
    values = column.flatten().to_numpy(zero_copy_only=False)
    kind = np.float32 if name == "weights" else np.int64
    return torch.from_numpy(values.astype(kind))


def _drawing(row: dict[str, Any]) -> Drawing | None:
    """What a viewer draws; `None` if nothing was stored for one."""
    import torch

    from tango_core.combination import Drawing

    if row["segments"] is None:
        return None
    frames, height, width = row["grid"]
    cells = (frames, height * width)

    def map_of(name: str, kind: torch.dtype) -> Tensor | None:
        raw = row[name]
        return None if raw is None else torch.frombuffer(bytearray(raw), dtype=kind).reshape(cells)

    scale = row["saliency_range"]
    return Drawing(
        segments=tuple(row["segments"]),
        static=map_of("static", torch.bool),
        saliency=map_of("saliency", torch.uint8),
        saliency_range=None if scale is None else torch.tensor(scale, dtype=torch.float32),
    )
