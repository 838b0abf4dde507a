"""Bytes by which the feature store grows."""

from __future__ import annotations

from collections import Counter
from datetime import UTC, datetime
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import torch

from jobs.estimate.tokens import grid_of
from pipeline.cache.feature_rows import FEATURE_WRITE_OPTIONS, signals_table, tokens_table
from pipeline.cache.features import FeatureStore
from pipeline.cache.names import TOKENS
from pipeline.cache.rows import ClipIdentity
from pipeline.plan import Plan
from tango_core.models.base import ModelSpec, VisionEncoder
from tango_core.types import VisualFeatures

# Of SigLIP, whose keys are averaged over heads; where the checkpoint is not on this machine.
_HEAD_WIDTH, _VISION_WIDTH = 72, 1152
_CLIP, _NOW, _HASH = ClipIdentity("0" * 20, "a clip", None, "0" * 40), datetime.now(UTC), "0" * 12


def feature_bytes(plan: Plan, encoder: VisionEncoder | None) -> float:
    """Bytes that a job adds to its feature store; 0 for a job without one.

    Features lie there uncompressed, so the size follows from the shapes.

    Args:
        plan: What will be done.
        encoder: On the device `meta`, for the widths of signals; `None` if it cannot be described.
    """
    store = plan.features
    if store is None or not store.writes:
        return 0.0
    wanted = Counter(tuple(parts) for parts in plan.clips["encode"].to_pylist() if parts)
    if not wanted:
        return 0.0
    features = _made_up(plan.model, encoder)
    return float(sum(n * _clip_bytes(store, features, parts) for parts, n in wanted.items()))


def _clip_bytes(store: FeatureStore, features: VisualFeatures, parts: tuple[str, ...]) -> int:
    """Of one clip, as the store writes it."""
    tables = []
    if TOKENS in parts:
        table = tokens_table(
            _CLIP, features, (0, 0), stored_as=store.cache.dtype, created_at=_NOW, cache=_HASH
        )
        tables.append(table)
    signals = {name: getattr(features, name) for name in sorted(store.signals & set(parts))}
    if signals:
        tables.append(signals_table(_CLIP, features, signals, (0, 0), created_at=_NOW, cache=_HASH))
    return sum(_file_bytes(table) for table in tables)


def _file_bytes(table: pa.Table) -> int:
    """Of a file of its own."""
    sink = pa.BufferOutputStream()
    pq.write_table(table, sink, **FEATURE_WRITE_OPTIONS)
    return int(sink.getvalue().size)


def _made_up(model: ModelSpec, encoder: VisionEncoder | None) -> VisualFeatures:
    """A clip of the model's size with all signals."""
    num_frames, grid = grid_of(model)
    cells = grid[0] * grid[1]
    vision: Any = getattr(getattr(encoder, "config", None), "vision_config", None)
    width: int = getattr(vision, "hidden_size", _VISION_WIDTH)
    heads = getattr(vision, "num_attention_heads", None)
    per_head = width // heads if heads else _HEAD_WIDTH
    shape = (num_frames, cells, model.companions, model.llm.hidden_size)
    dtype = getattr(torch, model.dtype)
    return VisualFeatures(
        tokens=torch.zeros(num_frames, cells, model.llm.hidden_size, dtype=dtype),
        companions=torch.zeros(shape, dtype=dtype) if model.companions else None,
        grid=grid,
        timestamps=torch.arange(num_frames, dtype=torch.float64),
        saliency=torch.zeros(num_frames, cells),
        attention=torch.zeros(num_frames, cells),
        keys=torch.zeros(num_frames, cells, per_head),
        frame_embeddings=torch.zeros(num_frames, width),
    )
