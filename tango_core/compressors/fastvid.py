"""FastVID: keep every frame's salient tokens; merge the rest of a scene into anchors of few frames.

Paper: "FastVID: Dynamic Density Pruning for Fast Video Large Language Models", Shen et al., NeurIPS
2025, Section 3 (DySeg, STPrune = ATS + DTM), https://arxiv.org/abs/2503.11187; c = 8, tau = 0.9, d
= 0.4, p = 4 and beta = 0.6 are its published settings.

The released code (LunarShen/FastVID) fails for clips of fewer than 8 frames and for budgets that do
not fit the anchor frames; here a short clip has as many segments as frames, and anchors are spread
over more frames until they fit. Densities carry no random noise, and ties are broken by position.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise
from typing import ClassVar, Literal

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from tango_core.compressors.base import Compressor
from tango_core.compressors.options import raise_if_below, raise_if_outside
from tango_core.compressors.ordering import in_order
from tango_core.ops.blocks import row_blocks, take_frames
from tango_core.ops.clustering import density_peaks, squared_distances
from tango_core.ops.merging import cluster_means
from tango_core.ops.saliency import rank_descending, take_ranked
from tango_core.ops.segmentation import cut_segments, dyseg_cuts
from tango_core.types import CompressedVideo, Positions, VisualFeatures

NUM_NEIGHBORS = 4


@dataclass(frozen=True)
class FastVID(Compressor):
    """Salient tokens per frame, plus density peaks of anchor frames that absorb their segment.

    A frame's budget is int(retention * L), 19 of 196 at 10 %, and at least 1. Anchor frames of a
    segment are its last one and every `anchor_stride`-th before it; they share the segment's
    context budget. The tokens keep their original position numbers, with gaps.

    Attributes:
        retention: Share of the tokens to keep, in (0, 1].
        num_segments: Least number of segments (c), if there are as many frames.
        tau: Cosine of whole frames below which a segment ends, in [-1, 1].
        context_ratio: Share of the budget for merged tokens (d), in [0, 1].
        anchor_stride: Frames per anchor frame (p).
        beta: Least weight of an anchor in its merged token, in [0, 1].
        variant: `"frame"` is the LLaVA-OneVision release: budgets are rounded per frame, and what
            does not divide evenly over a segment's anchor frames is lost; an anchor counts among
            its own members. `"segment"` is the LLaVA-Video release: budgets are rounded per segment
            and remainders handed out, and an anchor frame's anchors are not among what it absorbs.
    """

    positions: ClassVar[Positions] = "original"

    num_segments: int = 8
    tau: float = 0.9
    context_ratio: float = 0.4
    anchor_stride: int = 4
    beta: float = 0.6
    variant: Literal["frame", "segment"] = "frame"

    def __post_init__(self) -> None:
        """Check the options."""
        super().__post_init__()
        raise_if_outside(self, -1, 1, "tau")
        raise_if_outside(self, 0, 1, "context_ratio", "beta")
        raise_if_below(self, 1, "num_segments", "anchor_stride")

    @property
    def needs(self) -> frozenset[str]:
        """Saliency ranks tokens, frame embeddings find scenes."""
        return frozenset({"saliency", "frame_embeddings"})

    def _compress(self, features: VisualFeatures) -> CompressedVideo:
        """Cut, rank, then cluster and merge segment by segment; the host reads only the cuts."""
        assert features.saliency is not None
        assert features.frame_embeddings is not None
        tokens_per_frame = features.tokens.shape[1]
        cuts = dyseg_cuts(features.frame_embeddings, self.tau, self.num_segments)
        lengths = cut_segments(cuts.cpu().numpy())
        salient: list[int] = []
        context: list[int] = []
        for length in lengths:
            per_frame = self._budget(length, tokens_per_frame)
            salient += per_frame[0]
            context += per_frame[1]

        flat = features.tokens.flatten(0, 1)
        kept = [take_ranked(rank_descending(features.saliency.float()), salient)]
        values = [flat.index_select(0, kept[0])]
        if any(context):
            is_rest = torch.ones(len(flat), dtype=torch.bool, device=flat.device)
            is_rest[kept[0]] = False
            anchors, merged = self._merge(features.tokens, is_rest, lengths, context)
            kept.append(anchors)
            values.append(merged.to(flat.dtype))
        return in_order(kept, values, features)

    def _budget(self, length: int, tokens_per_frame: int) -> tuple[list[int], list[int]]:
        """Salient and context tokens of every frame of a segment of `length` frames."""
        total = max(1, int(tokens_per_frame * self.retention))
        if self.variant == "frame":
            per_frame = int(total * self.context_ratio)
            context = per_frame * length
            salient = [total - per_frame] * length
        else:
            context = int(total * length * self.context_ratio)
            salient = _spread(total * length - context, length)
        spread = [0] * length
        for stride in range(min(self.anchor_stride, length), 0, -1):
            anchor_frames = range(length - 1, -1, -stride)
            shares = _spread(context, len(anchor_frames))
            if self.variant == "frame":
                shares = [shares[-1]] * len(shares)
            spread = [0] * length
            for frame, share in zip(anchor_frames, shares, strict=True):
                spread[frame] = share
            if all(a + b <= tokens_per_frame for a, b in zip(salient, spread, strict=True)):
                break
        return salient, spread

    def _merge(
        self, tokens: Tensor, is_rest: Tensor, lengths: list[int], context: list[int]
    ) -> tuple[Tensor, Tensor]:
        """Flat positions of all anchors, and their merged tokens.

        Args:
            tokens: (T, L, D), any float dtype.
            is_rest: (T * L,) bool, tokens that are not salient.
            lengths: Frames of every segment.
            context: Anchors of every frame.
        """
        tokens_per_frame = tokens.shape[1]
        frames = [frame for frame, count in enumerate(context) if count]
        spatial = self._anchors(tokens, is_rest, frames, [context[frame] for frame in frames])
        bounds = np.cumsum([0, *lengths]).tolist()
        first_of = np.searchsorted(frames, bounds).tolist()
        positions, merged = [], []
        for (start, stop), (first, last) in zip(pairwise(bounds), pairwise(first_of), strict=True):
            if first == last:
                continue
            numbers = torch.tensor(frames[first:last], device=tokens.device)[:, None]
            anchors = spatial[first:last] + numbers * tokens_per_frame
            is_padding = spatial[first:last] == tokens_per_frame
            rows = slice(start * tokens_per_frame, stop * tokens_per_frame)
            blended = self._absorb(tokens.flatten(0, 1), is_rest, rows, anchors, is_padding)
            filled = [
                row * anchors.shape[1] + column
                for row, frame in enumerate(frames[first:last])
                for column in range(context[frame])
            ]
            wanted = torch.tensor(filled, device=tokens.device)
            positions.append(anchors.flatten()[wanted])
            merged.append(blended[wanted])
        return torch.cat(positions), torch.cat(merged)

    def _anchors(
        self, tokens: Tensor, is_rest: Tensor, frames: list[int], counts: list[int]
    ) -> Tensor:
        """(A, max count) ascending positions of each anchor frame's density peaks; padding is L."""
        tokens_per_frame, dim = tokens.shape[1:]
        rows = torch.tensor(frames, device=tokens.device)
        parts = row_blocks(len(frames), tokens_per_frame * dim, tokens.device)
        distances = torch.cat(
            [squared_distances(take_frames(tokens, frames[part])) for part in parts]
        )
        rest = is_rest.view(-1, tokens_per_frame)[rows]
        widest = max(counts)
        peaks = density_peaks(
            distances.div_(dim), widest, NUM_NEIGHBORS, include_self=True, members=rest
        )
        wanted = torch.tensor(counts, device=tokens.device)[:, None]
        is_padding = torch.arange(widest, device=tokens.device) >= wanted
        return peaks.masked_fill(is_padding, tokens_per_frame).sort(dim=1).values

    def _absorb(
        self,
        flat: Tensor,
        is_rest: Tensor,
        rows: slice,
        anchors: Tensor,
        is_padding: Tensor,
    ) -> Tensor:
        """(A * C, D) merged tokens of a segment: each anchor frame absorbs all that is not salient.

        Args:
            flat: (T * L, D), any float dtype.
            is_rest: (T * L,) bool, tokens that are not salient.
            rows: The segment's part of them.
            anchors: (A, C) flat positions.
            is_padding: (A, C) bool; these results have no meaning.
        """
        num_anchors, per_frame = anchors.shape
        targets = anchors.masked_fill(is_padding, rows.start).flatten()
        own = flat[targets].float()
        # A token's own length does not matter to which anchor is most similar to it.
        similarity = F.normalize(own, dim=-1) @ flat[rows].float().mT
        similarity = similarity.view(num_anchors, per_frame, -1)
        labels = similarity.masked_fill_(is_padding[..., None], -torch.inf).argmax(dim=1)
        members = is_rest[rows].expand(num_anchors, -1)
        if self.variant == "segment":
            # One column more than there are tokens takes what is padded.
            inside = (anchors - rows.start).masked_fill(is_padding, members.shape[1])
            outside = members.new_zeros(num_anchors, members.shape[1] + 1)
            outside.scatter_(1, inside, True)
            members = members & ~outside[:, :-1]
        base = torch.arange(num_anchors, device=flat.device)[:, None] * per_frame
        sources = torch.arange(rows.start, rows.stop, device=flat.device).expand(num_anchors, -1)
        means, counts = cluster_means(
            flat,
            (labels + base).flatten(),
            targets.numel(),
            sources=sources.flatten(),
            members=members.flatten(),
        )
        weights = (1 / (counts + 1)).clamp(min=self.beta)[:, None]
        return weights * own + (1 - weights) * means


def _spread(amount: int, parts: int) -> list[int]:
    """Divide `amount` into whole parts that differ by at most 1, the larger ones first."""
    share, more = divmod(amount, parts)
    return [share + (part < more) for part in range(parts)]
