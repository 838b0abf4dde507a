"""One prefill pass over the prompts of many requests, concatenated without padding.

A request is split into parts: prompts with a common beginning, which are prefilled in one pass.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from itertools import accumulate
from typing import Any

import torch
from torch import Tensor

from tango_core.compressors.base import LayerPruner
from tango_core.errors import InputError
from tango_core.models.language.arena import MAX_BATCH, KVArena
from tango_core.models.language.attention import (
    Work,
    attend_onwards,
    attend_whole,
    onwards_mask,
)
from tango_core.models.language.layer_loop import LayerLoop
from tango_core.models.language.prompt import LaidOutPrompt, Span, TextTokens, VisualTokens
from tango_core.models.language.pruning import Additions, PrunedRows, VisualSpan, counts
from tango_core.ops.transfer import upload
from tango_core.types import Answer


@dataclass(frozen=True, eq=False)
class LaidOutRequest:
    """Prompts about one clip, to be answered by one method.

    Attributes:
        prompts: Any number of text and visual spans each.
        pruner: Drops visual tokens between layers; every prompt is then prefilled on its own.
        max_new_tokens: Upper bound per reply, 1 or larger.
        share_prefix: Whether prompts may share the prefill of their common beginning.
    """

    prompts: Sequence[LaidOutPrompt]
    pruner: LayerPruner | None = None
    max_new_tokens: int = 16
    share_prefix: bool = True


@dataclass(eq=False)
class Reply:
    """A reply that is being generated; times in seconds.

    Attributes:
        prompt: The prompt that is answered.
        tokens: Token ids generated so far.
        prefill: The prompt's share of the time of its prefill passes.
        first: Time from the start of its first prefill pass to its first token.
        decode: The reply's share of the time of its decoding steps.
    """

    prompt: LaidOutPrompt
    tokens: list[int] = field(default_factory=list)
    prefill: float = 0.0
    first: float = 0.0
    decode: float = 0.0


@dataclass(eq=False)
class RequestInFlight:
    """A request being answered, and its replies.

    Attributes:
        request: The request as it was added.
        replies: One per prompt.
        open: Number of replies that have not ended.
        failed: Whether the request was returned with an error.
    """

    request: LaidOutRequest
    replies: list[Reply]
    open: int
    failed: bool = False
    answers: list[Answer] = field(default_factory=list)


@dataclass(eq=False)
class Prefix:
    """A common beginning of prompts, possibly of several parts.

    Attributes:
        spans: Text and clip.
        length: Number of tokens.
        slot: Slot of its keys and values; `None` until a part has computed them.
        waiting: Number of parts that still need it.
        decoding: Whether the sequence that has this slot is still being decoded.
    """

    spans: tuple[Span, ...]
    length: int
    slot: int | None = None
    waiting: int = 0
    decoding: bool = False


@dataclass(eq=False)
class Part:
    """Prompts that are prefilled in the same pass.

    Attributes:
        work: Request of the prompts.
        members: Indices of the prompts.
        need: Slot capacity in tokens that the longest prompt with this prefix needs.
        prefix: Common beginning of the members; `None` for a single prompt that shares nothing.
    """

    work: RequestInFlight
    members: Sequence[int]
    need: int
    prefix: Prefix | None = None

    @property
    def tokens(self) -> int:
        """Number of tokens of all members, replies included."""
        longest = self.work.request.max_new_tokens
        return sum(len(self.work.replies[index].prompt) + longest for index in self.members)


def parts_of(work: RequestInFlight) -> list[Part]:
    """Cut a request into parts, in the order of its prompts."""
    request, prompts = work.request, work.request.prompts
    groups: dict[tuple[Any, ...], list[int]] = {}
    for index, prompt in enumerate(prompts):
        shares = request.share_prefix and request.pruner is None
        key = _text_of(prompt.prefix) if shares else (index,)
        groups.setdefault(key, []).append(index)
    return [part for members in groups.values() for part in _parts_of_group(work, members)]


def single_parts(work: RequestInFlight, members: Iterable[int]) -> list[Part]:
    """One part per prompt, without shared prefixes."""
    return [Part(work, (index,), _need(work, [index])) for index in members]


def _parts_of_group(work: RequestInFlight, members: Sequence[int]) -> list[Part]:
    """Cut prompts that share a prefix into parts."""
    if len(members) == 1:
        return single_parts(work, members)
    prompts = [work.request.prompts[index] for index in members]
    first, shared = prompts[0], num_shared(prompts)
    spans = (*first.prefix, TextTokens(first.question[:shared]))
    cuts = [members[at : at + MAX_BATCH] for at in range(0, len(members), MAX_BATCH)]
    prefix = Prefix(spans, first.prefix_length + shared, waiting=len(cuts))
    need = _need(work, members)
    return [Part(work, cut, need, prefix) for cut in cuts]


def num_shared(prompts: Sequence[LaidOutPrompt]) -> int:
    """Number of tokens after the clip that all prompts share; each keeps at least one unshared.

    A protocol's instructions and LLaVA-Video's sentence about time, 400 tokens for 64 frames, are
    the same for every question of a clip.
    """
    # The common beginning of the lexicographically first and last is common to all.
    questions = [prompt.question for prompt in prompts]
    pairs = enumerate(zip(min(questions), max(questions), strict=False))
    shortest = min(map(len, questions)) - 1
    return min(shortest, next((at for at, (one, other) in pairs if one != other), shortest))


def _need(work: RequestInFlight, members: Iterable[int]) -> int:
    """Tokens of the longest of these prompts, its reply included."""
    longest = max(len(work.request.prompts[index]) for index in members)
    return longest + work.request.max_new_tokens


def _text_of(spans: Sequence[Span]) -> tuple[tuple[int, ...] | None, ...]:
    """Token ids of every text span and `None` for a visual one: the key for sharing a prefix."""
    return tuple(span.ids if isinstance(span, TextTokens) else None for span in spans)


@dataclass(eq=False)
class DecodedSequence:
    """A reply that is being decoded.

    Attributes:
        work: Request of the prompt.
        reply: The reply generated so far.
        slot: Slot in the arena.
        prefix: Beginning shared with other questions about its clip, if any.
        index: Index of the prompt in the request.
    """

    work: RequestInFlight
    reply: Reply
    slot: int
    prefix: Prefix | None
    index: int

    @property
    def tokens(self) -> int:
        """Number of tokens, the maximum reply length included."""
        return len(self.reply.prompt) + self.work.request.max_new_tokens

    def shifts(self, lengths: Sequence[Sequence[int]]) -> list[int]:
        """By how much a pruner that renumbers lowered the last position, per layer.

        Args:
            lengths: Number of keys and values held, by layer and slot.
        """
        positions, pruner = self.reply.prompt.positions, self.work.request.pruner
        held = [of_layer[self.slot] for of_layer in lengths]
        if pruner is None or not pruner.renumbers or not counts(positions[..., None, :]):
            return [0] * len(held)
        first, last = int(positions[0]), int(positions[-1])
        shortened = len(self.reply.prompt)
        return [0 if n == shortened else last - (first + n - 1) for n in held]


class PassLayout:
    """Assigns the parts of one prefill pass to slots of an arena.

    Args:
        arena: Arena whose slots are reserved; `undo` releases them.

    Attributes:
        segments: Segments of all parts, in the order of the rows.
        sequences: Sequences that begin in this pass.
        ends: Index of every sequence's last segment.
        taken: Slots reserved by this pass.
    """

    def __init__(self, arena: KVArena) -> None:
        self._arena = arena
        self._fresh: list[Prefix] = []
        self._resumed: list[Prefix] = []
        self.segments: list[Segment] = []
        self.sequences: list[DecodedSequence] = []
        self.ends: list[int] = []
        self.taken: list[int] = []

    def add(self, part: Part) -> None:
        """Append the segments and sequences of a part."""
        own = self._begin_prefix(part)
        for index in part.members:
            if own is None:
                slot = self._take()
            else:
                slot, own = own, None
            self.ends.append(len(self.segments))
            self.segments.append(_segment(part, index, slot))
            reply = part.work.replies[index]
            self.sequences.append(DecodedSequence(part.work, reply, slot, part.prefix, index))

    def share_out(self, seconds: float) -> None:
        """Divide the pass's time among the replies; the first question gets a shared prefix's."""
        of_slot = {one.slot: one for one in self.sequences}
        total = sum(segment.num_rows for segment in self.segments)
        for segment in self.segments:
            of_slot[segment.slot].reply.prefill += seconds * segment.num_rows / total

    def undo(self) -> None:
        """Release the slots of the pass and forget the prefixes that it computed."""
        for prefix in self._fresh:
            prefix.slot, prefix.decoding = None, False
        for prefix in self._resumed:
            prefix.decoding = False
        for slot in self.taken:
            self._arena.give_back(slot)

    def _take(self) -> int:
        """Reserve a free slot."""
        slot = self._arena.take()
        self.taken.append(slot)
        return slot

    def _begin_prefix(self, part: Part) -> int | None:
        """Reserve the prefix's slot for the part's first question; `None` if not possible."""
        prefix = part.prefix
        if prefix is None or (prefix.slot is not None and prefix.decoding):
            return None
        if prefix.slot is not None:
            self._resumed.append(prefix)
            prefix.decoding = True
            return prefix.slot
        slot = self._take()
        self._fresh.append(prefix)
        prefix.slot, prefix.decoding = slot, True
        places = part.work.request.prompts[part.members[0]].positions[..., : prefix.length]
        self.segments.append(Segment(prefix.spans, places, slot))
        return slot


def _segment(part: Part, index: int, slot: int) -> Segment:
    """The segment of a prompt: all of it, or the rows after the prefix."""
    request, prefix = part.work.request, part.prefix
    prompt = request.prompts[index]
    if prefix is None:
        return Segment(prompt.spans, prompt.positions, slot, pruner=request.pruner)
    behind = len(prompt.question) - (len(prompt) - prefix.length)
    return Segment(
        (TextTokens(prompt.question[behind:]),),
        prompt.positions[..., prefix.length :],
        slot,
        prefix.slot,
        prefix.length,
    )


@dataclass(eq=False)
class Segment:
    """The rows of one sequence in a pass.

    Attributes:
        spans: Text and visual tokens of the rows.
        positions: (..., n) int64 of these rows.
        slot: Slot that receives the keys and values.
        base: Slot of the sequence that these rows continue, possibly of an earlier segment of the
            same pass; `None` if the segment starts a sequence.
        shared: Number of that sequence's tokens before these rows.
        pruner: Drops visual tokens between layers; only if the segment starts a sequence.
    """

    spans: Sequence[Span]
    positions: Tensor
    slot: int
    base: int | None = None
    shared: int = 0
    pruner: LayerPruner | None = None

    @property
    def num_rows(self) -> int:
        """Number of rows before any pruning."""
        return sum(map(len, self.spans))


@dataclass(eq=False)
class _Rows:
    """State of a segment while it runs through the layers."""

    segment: Segment
    pruned: PrunedRows | None
    masks: dict[tuple[int, torch.device], Tensor | None] = field(default_factory=dict)

    @property
    def length(self) -> int:
        """Number of remaining rows."""
        return self.segment.num_rows if self.pruned is None else self.pruned.length


class Prefill(Work):
    """One prefill pass over segments; it writes their keys and values into the arena.

    Args:
        layer_loop: The layer loop; it calls `attend` of this object.
        arena: Arena with a slot for every segment.
        segments: Segments in the order of their rows; a segment comes after the one it continues.
    """

    compiles = True

    def __init__(self, layer_loop: LayerLoop, arena: KVArena, segments: Sequence[Segment]) -> None:
        self._layer_loop = layer_loop
        self._arena = arena
        self._segments = segments
        self._rows: list[_Rows] = []

    def run(self) -> Tensor:
        """Run the pass; (segments, D) output of the last layer at every segment's last row."""
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
        """See `Work`: a segment attends to itself and to the tokens it continues."""
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
        """Attention of one segment: (n, heads, head_dim)."""
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
    """(S, D) embeddings of text and visual tokens; all text ids are uploaded in one transfer."""
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
    """Positions of the clip for a pruner; several visual spans are pieces of one clip.

    Raises:
        ValueError: If there is no visual span, or they are of several clips.
    """
    found = visual_spans(spans)
    grids = {span.grid for _, span in found}
    if len(grids) != 1:
        raise InputError(
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
