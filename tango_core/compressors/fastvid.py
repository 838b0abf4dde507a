"""FastVID: keep every frame's salient tokens; merge the rest of a scene into anchors of few frames.

Paper: "FastVID: Dynamic Density Pruning for Fast Video Large Language Models", Shen et al., NeurIPS
2025, Section 3 (DySeg, STPrune = ATS + DTM), https://arxiv.org/abs/2503.11187; c = 8, tau = 0.9, d
= 0.4, p = 4 and beta = 0.6 are its published settings.

The released code (LunarShen/FastVID) fails for clips of fewer than 8 frames and for budgets that do
not fit the anchor frames; here a short clip has as many segments as frames, and anchors are spread
over more frames until they fit. No random noise is added to densities; ties are broken by position.

With `stop`, tokens are ranked by received attention minus sink scores instead of saliency, and 0.3
times the sink score of a position is subtracted from its score as an anchor. SToP's release
subtracts it twice in scenes of several frames; only `legacy` does so.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any, ClassVar, Literal

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from tango_core.combination import NOWHERE, Combination, Drawing, Terms, in_order, unchanged
from tango_core.compressors.base import Compressor, num_kept
from tango_core.compressors.options import Cosine, Count, Ratio
from tango_core.compressors.stop import ANCHOR_PENALTY, Stop, checked_stop, stop_for
from tango_core.ops.blocks import row_blocks, take_frames
from tango_core.ops.budgets import apportion, floor_share
from tango_core.ops.clustering import density_peaks, squared_distances
from tango_core.ops.finite import read_checked
from tango_core.ops.merging import mean_weights
from tango_core.ops.saliency import rank_descending, take_ranked
from tango_core.ops.segmentation import cut_segments, dyseg_cuts
from tango_core.ops.transfer import upload_together
from tango_core.types import Positions, VisualFeatures

NUM_NEIGHBORS = 4
STOP_STRENGTHS = (0.02, 0.0)


@dataclass(frozen=True)
class FastVID(Compressor):
    """Salient tokens per frame, plus density peaks in anchor frames, into which the rest is merged.

    A frame's budget is int(retention * L), 19 of 196 at 10 %, and at least 1. Anchor frames of a
    segment are its last one and every `anchor_stride`-th before it; they share the segment's
    context budget. The tokens keep their original position numbers, with gaps.

    Attributes:
        retention: Share of the tokens to keep, in (0, 1].
        num_segments: Minimum number of segments (c); at most one per frame.
        tau: A segment ends where the cosine of consecutive frames is below this, in [-1, 1].
        context_ratio: Share of the budget for merged tokens (d), in [0, 1].
        anchor_stride: Frames per anchor frame (p).
        beta: Minimum weight of an anchor in its merged token, in [0, 1].
        variant: `"frame"` is the LLaVA-OneVision release: budgets are rounded per frame, remainders
            of the division over a segment's anchor frames are lost, and an anchor is a member of
            its own cluster. `"segment"` is the LLaVA-Video release: budgets are rounded per
            segment, remainders are distributed, and anchors are not merged into their own frame's
            anchors.
        stop: Rank by attention minus sink scores, `{"spatial": 0.02, "temporal": 0, "gamma":
            1.1}` as published; see `stop.py`. `None` ranks by saliency.
        budget: `"official"` rounds as described above; `"exact"` keeps round(retention * T * L)
            tokens, divided over the segments by their length and inside them as in `"segment"`.
    """

    positions: ClassVar[Positions] = "original"
    checks_in_plan: ClassVar[bool] = True
    added_options: ClassVar[Mapping[str, Any]] = {"stop": None, "budget": "official"}

    num_segments: Count = 8
    tau: Cosine = 0.9
    context_ratio: Ratio = 0.4
    anchor_stride: Count = 4
    beta: Ratio = 0.6
    variant: Literal["frame", "segment"] = "frame"
    stop: Mapping[str, Any] | None = field(default=None, hash=False)
    budget: Literal["official", "exact"] = "official"

    def __post_init__(self) -> None:
        """Check the options."""
        super().__post_init__()
        if self.stop is not None:
            object.__setattr__(self, "stop", checked_stop("fastvid", self.stop, STOP_STRENGTHS))

    @property
    def needs(self) -> frozenset[str]:
        """Saliency (attention with `stop`) to rank tokens, frame embeddings to find scenes."""
        score = "saliency" if self.stop is None else "attention"
        return frozenset({score, "frame_embeddings"})

    def _plan(self, features: VisualFeatures) -> Combination:
        """Cut, rank, then cluster and merge segment by segment; the host reads only the cuts."""
        tokens_per_frame = features.tokens.shape[1]
        cuts = dyseg_cuts(features.signal("frame_embeddings"), self.tau, self.num_segments)
        (is_cut,) = read_checked(features, self.needs, cuts)
        lengths = cut_segments(is_cut)
        salient: list[int] = []
        context: list[int] = []
        for length, total in zip(lengths, self._totals(lengths, tokens_per_frame), strict=True):
            per_frame = self._budget(length, tokens_per_frame, total)
            salient += per_frame[0]
            context += per_frame[1]

        scores, penalties = self._scores(features, lengths)
        parts = [unchanged(take_ranked(rank_descending(scores), salient))]
        if any(context):
            is_rest = torch.ones(scores.numel(), dtype=torch.bool, device=scores.device)
            is_rest.index_fill_(0, parts[0].kept, False)
            parts += self._merge(features.tokens, is_rest, lengths, salient, context, penalties)
        return in_order(features, parts, Drawing(tuple(lengths)))

    def _scores(self, features: VisualFeatures, lengths: list[int]) -> tuple[Tensor, Tensor | None]:
        """(T, L) float32 token scores; (T, L) penalties of anchor scores, or `None`."""
        if self.stop is None:
            return features.signal("saliency").float(), None
        attention = features.signal("attention")
        stop = stop_for(self.stop, features)
        if stop is None:
            return attention.float(), None
        scores = stop.lowered(attention)
        if not stop.spatial:
            return scores, None
        sinks = stop.sink_scores(attention)
        return scores, _weights(stop, lengths).to(sinks.device)[:, None] * sinks

    def _totals(self, lengths: list[int], tokens_per_frame: int) -> list[int | None]:
        """Token budget of every segment; `None` if every frame has the same budget."""
        if self.budget == "official":
            return [None] * len(lengths)
        sizes = np.array(lengths, dtype=np.int64) * tokens_per_frame
        total = num_kept(int(sizes.sum()), self.retention)
        return list(apportion(total, sizes * (total / sizes.sum()), sizes).tolist())

    def _budget(
        self, length: int, tokens_per_frame: int, total: int | None = None
    ) -> tuple[list[int], list[int]]:
        """Numbers of salient and of context tokens per frame of a segment of `length` frames."""
        by_frame = self.variant == "frame" and total is None
        share = max(1, floor_share(tokens_per_frame, self.retention))
        total = share * length if total is None else total
        if by_frame:
            per_frame = floor_share(share, self.context_ratio)
            context = per_frame * length
            salient = [share - per_frame] * length
        else:
            context = floor_share(total, self.context_ratio)
            salient = _spread(total - context, length)
        spread = [0] * length
        for stride in range(min(self.anchor_stride, length), 0, -1):
            anchor_frames = range(length - 1, -1, -stride)
            anchors = _spread(context, len(anchor_frames))
            if by_frame:
                anchors = [anchors[-1]] * len(anchors)
            spread = [0] * length
            for frame, count in zip(anchor_frames, anchors, strict=True):
                spread[frame] = count
            if all(a + b <= tokens_per_frame for a, b in zip(salient, spread, strict=True)):
                break
        return salient, spread

    def _merge(
        self,
        tokens: Tensor,
        is_rest: Tensor,
        lengths: list[int],
        salient: list[int],
        context: list[int],
        penalties: Tensor | None,
    ) -> list[Terms]:
        """Choose all anchors and merge the other tokens into them.

        Args:
            tokens: (T, L, D), any float dtype.
            is_rest: (T * L,) bool, tokens that are not salient.
            lengths: Number of frames of every segment.
            salient: Number of salient tokens of every frame.
            context: Number of anchors of every frame.
            penalties: (T, L) subtracted from the scores of anchors, or `None`.
        """
        tokens_per_frame = tokens.shape[1]
        frames = [frame for frame, count in enumerate(context) if count]
        counts = [context[frame] for frame in frames]
        bounds = np.cumsum([0, *lengths]).tolist()
        first_of = np.searchsorted(frames, bounds).tolist()
        filled = [_filled(counts[first:last], max(counts)) for first, last in pairwise(first_of)]
        at_frames, at_counts, *places = upload_together([frames, counts, *filled], tokens.device)
        spatial = _anchors(tokens, is_rest, frames, at_frames, at_counts, max(counts), penalties)
        parts: list[Terms] = []
        for (start, stop), (first, last), wanted in zip(
            pairwise(bounds), pairwise(first_of), places, strict=True
        ):
            if first == last:
                continue
            anchors = spatial[first:last] + at_frames[first:last, None] * tokens_per_frame
            is_padding = spatial[first:last] == tokens_per_frame
            rows = slice(start * tokens_per_frame, stop * tokens_per_frame)
            # Tokens of the segment that an anchor frame does not merge: all salient ones and, in
            # `"segment"`, the frame's own anchors.
            left_out = sum(salient[start:stop]) * (last - first)
            if self.variant == "segment":
                left_out += sum(counts[first:last])
            absorbed, own = self._absorb(tokens.flatten(0, 1), is_rest, rows, anchors, is_padding)
            at = anchors.flatten()[wanted]
            nothing = at[:0]
            parts += [
                Terms(nothing, *absorbed, num_nowhere=left_out),
                Terms(at, at, at, own[wanted]),
            ]
        return parts

    def _absorb(
        self,
        flat: Tensor,
        is_rest: Tensor,
        rows: slice,
        anchors: Tensor,
        is_padding: Tensor,
    ) -> tuple[tuple[Tensor, Tensor, Tensor], Tensor]:
        """Merge all non-salient tokens of a segment into the anchors of every anchor frame.

        Args:
            flat: (T * L, D), any float dtype.
            is_rest: (T * L,) bool, tokens that are not salient.
            rows: The segment's slice of the tokens.
            anchors: (A, C) flat positions.
            is_padding: (A, C) bool, padded entries; their results are undefined.

        Returns:
            Targets, sources and weights of the merged tokens, as in `Terms`; and (A * C,) weights
            of the anchors themselves.
        """
        num_anchors, per_frame = anchors.shape
        targets = anchors.masked_fill(is_padding, rows.start)
        own = flat[targets.flatten()].float()
        # The length of a token does not affect which anchor is most similar.
        similarity = F.normalize(own, dim=-1) @ flat[rows].float().mT
        similarity = similarity.view(num_anchors, per_frame, -1)
        labels = similarity.masked_fill_(is_padding[..., None], -torch.inf).argmax(dim=1)
        members = is_rest[rows].expand(num_anchors, -1)
        if self.variant == "segment":
            # An extra column receives the writes of padding entries.
            inside = (anchors - rows.start).masked_fill(is_padding, members.shape[1])
            outside = members.new_zeros(num_anchors, members.shape[1] + 1)
            outside.scatter_(1, inside, True)
            members = members & ~outside[:, :-1]
        base = torch.arange(num_anchors, device=flat.device)[:, None] * per_frame
        numbers = (labels + base).flatten()
        weights, counts = mean_weights(numbers, targets.numel(), members.flatten())
        own_weights = (1 / (counts + 1)).clamp(min=self.beta)
        into = targets.gather(1, labels).masked_fill_(~members, NOWHERE).flatten()
        sources = torch.arange(rows.start, rows.stop, device=flat.device).repeat(num_anchors)
        return (into, sources, weights * (1 - own_weights)[numbers]), own_weights


def _anchors(
    tokens: Tensor,
    is_rest: Tensor,
    frames: list[int],
    rows: Tensor,
    counts: Tensor,
    widest: int,
    penalties: Tensor | None,
) -> Tensor:
    """(A, widest) ascending positions of every anchor frame's density peaks, padded with L.

    Args:
        tokens: (T, L, D), any float dtype.
        is_rest: (T * L,) bool, tokens that are not salient.
        frames: The A anchor frames.
        rows: `frames` as a tensor on the device.
        counts: (A,) number of anchors of every frame, on the device.
        widest: Largest number of anchors.
        penalties: (T, L) subtracted from the scores of anchors, or `None`.
    """
    tokens_per_frame, dim = tokens.shape[1:]
    parts = row_blocks(len(frames), tokens_per_frame * dim, tokens.device)
    distances = torch.cat([squared_distances(take_frames(tokens, frames[part])) for part in parts])
    peaks = density_peaks(
        distances.div_(dim),
        widest,
        NUM_NEIGHBORS,
        include_self=True,
        members=is_rest.view(-1, tokens_per_frame)[rows],
        penalties=None if penalties is None else penalties[rows],
    )
    is_padding = torch.arange(widest, device=tokens.device) >= counts[:, None]
    return peaks.masked_fill(is_padding, tokens_per_frame).sort(dim=1).values


def _filled(counts: list[int], width: int) -> list[int]:
    """Flat indices of the first `counts[row]` entries of every row of a table."""
    return [row * width + column for row, count in enumerate(counts) for column in range(count)]


def _weights(stop: Stop, lengths: list[int]) -> Tensor:
    """(T,) factor of the sink scores that is subtracted from anchor scores, per frame."""
    twice = 2 if stop.legacy else 1
    weights = [ANCHOR_PENALTY * (1 if length == 1 else twice) for length in lengths]
    return torch.tensor(weights).repeat_interleave(torch.tensor(lengths))


def _spread(amount: int, parts: int) -> list[int]:
    """Divide `amount` into whole parts that differ by at most 1, the larger ones first."""
    share, more = divmod(amount, parts)
    return [share + (part < more) for part in range(parts)]
