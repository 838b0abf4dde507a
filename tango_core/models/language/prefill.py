"""The first pass of prompts through the layers: many sequences as one row of tokens."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import accumulate

import torch
from torch import Tensor

from tango_core.compressors.base import LayerPruner
from tango_core.models.language.arena import KVArena
from tango_core.models.language.deepstack import Additions
from tango_core.models.language.layer_loop import LayerLoop
from tango_core.models.language.packed_attention import (
    Work,
    attend_onwards,
    attend_whole,
    onwards_mask,
)
from tango_core.models.language.prompt import Span, TextTokens, VisualTokens
from tango_core.models.language.pruned_rows import PrunedRows, VisualSpan
from tango_core.ops.transfer import upload


@dataclass(eq=False)
class Segment:
    """The rows of one sequence in a pass.

    Attributes:
        spans: What the rows are.
        positions: (..., n) int64 of these rows.
        slot: Where its keys and values go.
        base: Slot of the sequence that these rows go on from, which may be that of an earlier
            segment of the same pass; `None` for a sequence from its beginning.
        shared: Tokens of that sequence that stand before these rows.
        pruner: Drops visual tokens between layers; for a sequence from its beginning.
    """

    spans: Sequence[Span]
    positions: Tensor
    slot: int
    base: int | None = None
    shared: int = 0
    pruner: LayerPruner | None = None

    @property
    def num_rows(self) -> int:
        """Rows before any pruning."""
        return sum(map(len, self.spans))


@dataclass(eq=False)
class _Rows:
    """A segment while it runs through the layers."""

    segment: Segment
    pruned: PrunedRows | None
    masks: dict[tuple[int, torch.device], Tensor | None] = field(default_factory=dict)

    @property
    def length(self) -> int:
        """Rows still there."""
        return self.segment.num_rows if self.pruned is None else self.pruned.length


class Prefill(Work):
    """One pass of some segments; their keys and values are in the arena afterwards.

    Args:
        layer_loop: The layers, which attend through work.
        arena: Has a slot for every segment.
        segments: In the order of their rows; one that goes on from another comes after it.
    """

    compiles = True

    def __init__(self, layer_loop: LayerLoop, arena: KVArena, segments: Sequence[Segment]) -> None:
        self._layer_loop = layer_loop
        self._arena = arena
        self._segments = segments
        self._rows: list[_Rows] = []

    def run(self) -> Tensor:
        """(number of segments, D) output of the last layer at the last row of every segment."""
        loop = self._layer_loop
        spans = [span for one in self._segments for span in one.spans]
        hidden = embed_spans(loop, spans)
        positions = torch.cat([one.positions for one in self._segments], dim=-1)
        positions, start = upload(positions, loop.device), 0
        self._rows = []
        for segment in self._segments:
            pruned = None
            if segment.pruner is not None:
                span = visual_span(segment.spans, loop.device)
                pruned = loop.pruned_rows(segment.pruner, span, start, segment.num_rows)
            self._rows.append(_Rows(segment, pruned))
            start += segment.num_rows
        output = loop.run_packed(
            hidden,
            positions,
            self,
            pruned=[rows.pruned for rows in self._rows if rows.pruned is not None],
            added=additions(spans, loop.device),
        )
        ends = torch.tensor([rows.length for rows in self._rows]).cumsum(dim=0) - 1
        return output[upload(ends, output.device)]

    def attend(
        self, layer: int, queries: Tensor, keys: Tensor, values: Tensor, scaling: float
    ) -> Tensor:
        """See `Work`: every segment sees itself and what it goes on from."""
        mixed, start = [], 0
        for rows in self._rows:
            part = slice(start, start + rows.length)
            start = part.stop
            own = queries[:, part], keys[:, part], values[:, part]
            mixed.append(self._attend(layer, rows, *own, scaling))
        return mixed[0] if len(mixed) == 1 else torch.cat(mixed)

    def _attend(
        self,
        layer: int,
        rows: _Rows,
        queries: Tensor,
        keys: Tensor,
        values: Tensor,
        scaling: float,
    ) -> Tensor:
        """One segment: (n, heads, head_dim)."""
        segment, arena = rows.segment, self._arena
        if segment.base is None:
            arena.write(layer, segment.slot, keys, values)
            return attend_whole(queries, keys, values, scaling)
        arena.copy(layer, segment.base, segment.slot, segment.shared)
        arena.write(layer, segment.slot, keys, values)
        num_keys, groups = segment.shared + rows.length, len(queries) // len(keys)
        kind = groups, queries.device
        if kind not in rows.masks:
            rows.masks[kind] = onwards_mask(rows.length, num_keys, *kind)
        seen = arena.read(layer, segment.slot, num_keys)
        return attend_onwards(queries, *seen, scaling, rows.masks[kind])


def embed_spans(layer_loop: LayerLoop, spans: Sequence[Span]) -> Tensor:
    """(S, D) embeddings of text and visual tokens; all text goes to the device at once."""
    texts = [span.ids for span in spans if isinstance(span, TextTokens)]
    embedded = layer_loop.embed([token for ids in texts for token in ids])
    pieces = iter(torch.split(embedded, [len(ids) for ids in texts]))
    return torch.cat(
        [
            next(pieces)
            if isinstance(span, TextTokens)
            else span.embeddings.to(layer_loop.device, layer_loop.dtype)
            for span in spans
        ]
    )


def visual_span(spans: Sequence[Span], device: torch.device) -> VisualSpan:
    """Where the clip is, for a pruner; several visual spans are pieces of one clip.

    Raises:
        ValueError: If there is no visual span, or they are of several clips.
    """
    found = visual_spans(spans)
    grids = {span.grid for _, span in found}
    if len(grids) != 1:
        raise ValueError(
            f"a prompt with {len(grids)} clips cannot be pruned inside the language model; "
            "use a method that acts before it"
        )
    return VisualSpan(
        upload(rows_of(found), device),
        upload(torch.cat([span.indices for _, span in found]), device),
        grids.pop(),
        len(spans[-1]),
        is_one_run=len(found) == 1 and spans[-2] is found[0][1],
    )


def additions(spans: Sequence[Span], device: torch.device) -> Additions | None:
    """What the visual tokens among some spans bring along; `None` for nothing."""
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
    """(V,) int64 rows of visual spans."""
    return torch.cat([torch.arange(start, start + len(span)) for start, span in found])
