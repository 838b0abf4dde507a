"""One pass of many sequences through the layers: a prefill, or a step of decoding.

The rows of all sequences are concatenated without padding; only attention separates them.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from copy import deepcopy
from dataclasses import dataclass
from functools import cache, cached_property
from itertools import accumulate
from typing import Any

import torch
from torch import Tensor
from transformers import DynamicCache

from tango_core.compressors.base import LayerPruner
from tango_core.models.language.attention import attend_onwards, attend_whole, onwards_mask
from tango_core.models.language.layer_loop import Additions, LayerLoop, PrunedRows, VisualSpan
from tango_core.models.language.prompt import Span, TextTokens, VisualTokens
from tango_core.ops.transfer import upload


class SequenceState:
    """What one sequence leaves in every layer: keys and values, or a recurrent state.

    Layers behind a pruner hold fewer tokens than those before it.

    Args:
        config: Configuration of the text model.
        capacity: Maximum number of tokens, the reply included.
    """

    def __init__(self, config: Any, capacity: int) -> None:
        self.lengths = [0] * config.num_hidden_layers
        self._capacity = capacity
        self._config = config
        self._held: dict[int, Tensor] = {}

    @cached_property
    def _recurrent(self) -> Any:
        """Recurrent states, as the mixers of linear attention read and write them."""
        return DynamicCache(config=self._config)

    def start_from(self, layer: int, other: SequenceState) -> None:
        """Copy the state of another sequence in a layer into this one, which is empty."""
        if layer in other._held:
            self.append(layer, other.held(layer))
        else:
            self.lengths[layer] = other.lengths[layer]
            self._recurrent.layers[layer] = deepcopy(other._recurrent.layers[layer])

    def continue_linear(self, layer: int, mixer: Callable[..., Tensor], rows: Tensor) -> Tensor:
        """(1, n, D) output of linear attention for the next (1, n, D) rows of the sequence."""
        self.lengths[layer] += rows.shape[1]
        return mixer(rows, cache_params=self._recurrent)

    def append(self, layer: int, new: Tensor) -> Tensor:
        """Append keys and values of a layer with full attention.

        Args:
            layer: Its index.
            new: (2, kv_heads, n, head_dim) keys and values.

        Returns:
            (2, kv_heads, S, head_dim) view of all keys and values of the layer.
        """
        if layer not in self._held:
            shape = (*new.shape[:2], self._capacity, new.shape[3])
            self._held[layer] = torch.empty(shape, dtype=new.dtype, device=new.device)
        start = self.lengths[layer]
        self.lengths[layer] = stop = start + new.shape[2]
        self._held[layer][:, :, start:stop] = new
        return self.held(layer)

    def held(self, layer: int) -> Tensor:
        """(2, kv_heads, S, head_dim) view of all keys and values of a layer."""
        return self._held[layer][:, :, : self.lengths[layer]]


@dataclass(frozen=True, eq=False)
class Segment:
    """The rows of one sequence in a pass.

    Attributes:
        spans: Text and visual tokens of the rows.
        positions: (..., n) int64 of these rows, on the host.
        cache: State of the sequence; the rows continue it.
        base: State of another sequence, possibly of an earlier segment of the same pass, that is
            copied into the empty `cache` first.
        pruner: Drops visual tokens between layers; only for a segment that starts a sequence.
        shifts: Per layer, by how much positions are lowered there; empty for none.
    """

    spans: Sequence[Span]
    positions: Tensor
    cache: SequenceState
    base: SequenceState | None = None
    pruner: LayerPruner | None = None
    shifts: Sequence[int] = ()

    @property
    def num_rows(self) -> int:
        """Number of rows before any pruning."""
        return sum(map(len, self.spans))


class _PackedAttention:
    """Keeps the segments of a pass apart: each sees itself and the tokens it continues.

    Args:
        segments: The segments of the pass.
        pruned: Per segment, its state if a pruner shortens it.
    """

    def __init__(self, segments: Sequence[Segment], pruned: Sequence[PrunedRows | None]) -> None:
        self._segments = segments
        self._pruned = pruned
        self._mask = cache(onwards_mask)

    def lengths(self) -> list[int]:
        """Number of remaining rows per segment."""
        return [
            one.num_rows if rows is None else rows.length
            for one, rows in zip(self._segments, self._pruned, strict=True)
        ]

    def recur(self, layer: int, mixer: Callable[..., Tensor], hidden: Tensor) -> Tensor:
        """See `Recur`."""
        mixed, split = [], torch.split(hidden, self.lengths(), dim=1)
        for one, rows in zip(self._segments, split, strict=True):
            if one.base is not None:
                one.cache.start_from(layer, one.base)
            mixed.append(one.cache.continue_linear(layer, mixer, rows))
        return torch.cat(mixed, dim=1)

    def attend(
        self, layer: int, queries: Tensor, keys: Tensor, values: Tensor, scaling: float
    ) -> Tensor:
        """See `Attend`."""
        lengths, groups = self.lengths(), len(queries) // len(keys)
        new = torch.split(torch.stack((keys, values)), lengths, dim=2)
        mixed, split = [], torch.split(queries, lengths, dim=1)
        for one, own, rows in zip(self._segments, new, split, strict=True):
            if one.base is not None:
                one.cache.start_from(layer, one.base)
            seen_keys, seen_values = one.cache.append(layer, own)
            num_rows, num_keys = rows.shape[1], seen_keys.shape[1]
            if num_rows == num_keys:
                mixed.append(attend_whole(rows, seen_keys, seen_values, scaling))
            else:
                mask = self._mask(num_rows, num_keys, groups, queries.device)
                mixed.append(attend_onwards(rows, seen_keys, seen_values, scaling, mask))
        return mixed[0] if len(mixed) == 1 else torch.cat(mixed)


def run_segments(loop: LayerLoop, segments: Sequence[Segment]) -> Tensor:
    """Run one pass, which continues the states of the segments' sequences.

    Args:
        loop: The layers.
        segments: In the order of their rows; a segment comes after the one it continues.

    Returns:
        (segments, D) output of the last layer at every segment's last row.
    """
    spans = [span for one in segments for span in one.spans]
    positions = upload(torch.cat([one.positions for one in segments], dim=-1), loop.device)
    pruned: list[PrunedRows | None] = []
    starts = accumulate((one.num_rows for one in segments), initial=0)
    for start, one in zip(starts, segments, strict=False):
        rows = None
        if one.pruner is not None:
            span = visual_span(one.spans, loop.device)
            rows = loop.pruned_rows(one.pruner, span, start, one.num_rows)
        pruned.append(rows)
    packed = _PackedAttention(segments, pruned)
    output = loop.run(
        embed_spans(loop, spans),
        positions,
        packed.attend,
        packed.recur,
        pruned=[rows for rows in pruned if rows is not None],
        shifted=_shifted(segments, positions),
        added=additions(spans, loop.device),
    )
    ends = torch.tensor(packed.lengths()).cumsum(dim=0) - 1
    return output[upload(ends, output.device)]


def _shifted(segments: Sequence[Segment], positions: Tensor) -> dict[int, Tensor]:
    """Layer -> positions from that layer on, where they differ from the previous layer's."""
    rows = [one.shifts or (0,) for one in segments for _ in range(one.num_rows)]
    found, before = {}, [0] * len(rows)
    for layer in range(max(map(len, rows))):
        shifts = [row[min(layer, len(row) - 1)] for row in rows]
        if shifts != before:
            found[layer] = positions - upload(torch.tensor(shifts), positions.device)
        before = shifts
    return found


def embed_spans(loop: LayerLoop, spans: Sequence[Span]) -> Tensor:
    """(S, D) embeddings of text and visual tokens; all text ids are uploaded in one transfer."""
    texts = [span.ids for span in spans if isinstance(span, TextTokens)]
    embedded = loop.embed([token for ids in texts for token in ids])
    pieces = iter(torch.split(embedded, [len(ids) for ids in texts]))
    parts = []
    for span in spans:
        if isinstance(span, VisualTokens):
            parts.append(span.embeddings.to(loop.device, loop.dtype))
        else:
            parts.append(next(pieces))
    return torch.cat(parts)


def visual_span(spans: Sequence[Span], device: torch.device) -> VisualSpan:
    """Positions of the clip for a pruner; several visual spans are pieces of one clip."""
    found = visual_spans(spans)
    return VisualSpan(
        upload(rows_of(found), device),
        upload(torch.cat([span.indices for _, span in found]), device),
        found[0][1].grid,
        len(spans[-1]),
        is_one_run=len(found) == 1 and spans[-2] is found[0][1],
    )


def additions(spans: Sequence[Span], device: torch.device) -> Additions | None:
    """Companion rows of the visual tokens (DeepStack); `None` if there are none."""
    found = [(at, span) for at, span in visual_spans(spans) if span.companions is not None]
    if not found:
        return None
    values = [upload(span.companions, device) for _, span in found if span.companions is not None]
    return Additions(upload(rows_of(found), device), torch.cat(values))


def visual_spans(spans: Sequence[Span]) -> list[tuple[int, VisualTokens]]:
    """(first row, span) of every visual span."""
    starts = accumulate(map(len, spans), initial=0)
    return [
        (start, span)
        for start, span in zip(starts, spans, strict=False)
        if isinstance(span, VisualTokens)
    ]


def rows_of(found: Sequence[tuple[int, VisualTokens]]) -> Tensor:
    """(V,) int64 row indices of all visual tokens."""
    return torch.cat([torch.arange(start, start + len(span)) for start, span in found])
