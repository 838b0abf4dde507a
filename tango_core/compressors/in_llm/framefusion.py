"""FrameFusion: merge tokens that repeat the previous frame layer by layer, then prune once.

Paper: "FrameFusion: Combining Similarity and Importance for Video Token Reduction on Large Vision
Language Models", Fu et al., ICCV 2025, https://arxiv.org/abs/2501.01986. The steps follow the
release (thu-nics/FrameFusion).
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from tango_core.compressors.base import LayerContext, LayerPruner, Pruned
from tango_core.compressors.options import Cosine, Index, Ratio
from tango_core.errors import InputError
from tango_core.ops.blocks import row_blocks
from tango_core.ops.merging import cluster_means
from tango_core.ops.saliency import positions_of, top_positions

_STATE = "framefusion"
PUBLISHED_COST = 0.3


@dataclass(frozen=True)
class FrameFusion(LayerPruner):
    """Average runs of tokens that are similar from frame to frame; prune once to meet the budget.

    At the input of every layer, each token is compared with the previous one at the same
    spatial position and merged into it if the cosine is `similarity` or more; a run of such tokens
    becomes their mean at the run's first token. Once fewer than `min_merged` of the tokens merge,
    the next layer prunes once by attention (the cut), so that the rest of the budget covers the
    remaining layers.
    If merging would exceed what the budget needs, only the most similar tokens merge, and pruning
    ends. The number of tokens per layer thus depends on the clip; the average over the layers is
    `retention`, up to rounding.

    The release acts between attention and MLP of a layer, this class at the inputs of layers: one
    more MLP runs before each step; the attention and the accounting are the same. If merging uses
    up the budget of later layers, or continues to the last layer, the release raises an error or
    exceeds its budget; here the cut is made at that layer. Newline tokens count as an additional
    column of the grid. Tokens keep their positions.

    Attributes:
        retention: Share of the visual tokens averaged over all layers; the release's cost, 0.3.
        layer: Earliest layer for the cut, if the target allows it; merging starts at layer 0 and
            ends before the cut. The release has no such bound and always cuts a clip that hardly
            merges at layer 1. For a `retention` below 0.45 the same happens here, because the
            layers before the cut must not use a larger part of the budget than at the release's
            cost. From 0.45 on such a clip is cut at layer 2, one layer later than in the release
            and by more tokens, with the same average: all in-LLM methods here start pruning at
            layer 2, so that they are comparable. `layer=1` is the release's rule at every
            retention.
        similarity: Cosine from which a token merges; 0.6 in the release.
        min_merged: Share of the current tokens below which merging ends; 0.1 in the release.
    """

    layer: Index = 2
    similarity: Cosine = 0.6
    min_merged: Ratio = 0.1

    def layers(self, num_layers: int) -> tuple[int, ...]:
        """All layers, because the clip determines when merging ends.

        Raises:
            ValueError: If the first layer alone can exceed the average.
        """
        if self.retention < 1 and self.retention * num_layers <= 1:
            raise InputError(
                f"retention {self.retention} cannot be reached with layer={self.layer} nor any "
                f"other: all tokens pass the first layer, which in 1 of {num_layers} layers "
                f"average to {1 / num_layers:.6g}; raise retention above that"
            )
        return tuple(range(num_layers))

    def layer_shares(self, num_layers: int) -> tuple[float, ...]:
        """`retention` in every layer, as if all merging happened before the first layer.

        Only the mean is guaranteed: a clip that merges slowly has more tokens in early layers and
        fewer in late ones.
        """
        return (self.retention,) * len(self.layers(num_layers))

    def prune(self, context: LayerContext) -> Pruned:
        """Merge, cut, or keep everything, depending on this prompt's phase."""
        budget: _Budget = context.scratch.setdefault(
            _STATE, _Budget(self.retention * context.num_layers * context.num_visual)
        )
        everything = torch.arange(context.num_left, device=context.hidden.device)
        if budget.phase == "done" or not context.num_left:
            return context.select(everything)
        allowed = min(context.num_left, budget.left / (context.num_layers - context.layer))
        if budget.phase == "cut":
            budget.phase = "done"
            return context.select(_most_attended(context, everything, round(allowed)))
        return self._merge(context, budget, allowed)

    def _may_cut(self, layer: int) -> bool:
        """Whether the cut may be made before this layer."""
        return layer >= min(self.layer, max(1, round(self.retention / PUBLISHED_COST)))

    def _merge(self, context: LayerContext, budget: _Budget, allowed: float) -> Pruned:
        """Merge similar tokens, and choose the next phase.

        The only read from the device is the number of merging tokens.

        Args:
            context: The pruner's input.
            budget: Updated to the budget after this layer.
            allowed: Tokens per layer that the remaining budget allows, at most the current number.
        """
        similarity, order = _to_previous(context)
        merges = similarity >= self.similarity
        num_merged = int(merges.sum())
        to_merge = int(context.num_left - allowed)
        if num_merged >= context.num_left - allowed:
            budget.phase = "done"
            num_merged = to_merge
            merges = torch.zeros_like(merges)
            merges.index_fill_(0, top_positions(similarity, to_merge), True)
        kept, states = _fused(context, merges, order, context.num_left - num_merged)
        if budget.phase == "done":
            return context.select_merged(kept, states)
        if num_merged < self.min_merged * context.num_left and self._may_cut(context.layer + 1):
            budget.phase = "cut"
        # Always true at the last layer.
        if budget.left <= len(kept):
            budget.phase = "done"
            chosen = _most_attended(context, kept, round(allowed))
            return context.select_merged(chosen, states[torch.searchsorted(kept, chosen)])
        budget.left -= len(kept)
        return context.select_merged(kept, states)


@dataclass
class _Budget:
    """Remaining budget and phase of one prompt.

    Attributes:
        left: Number of visual tokens, summed over the remaining layers, that may enter them.
        phase: `"merge"`, `"cut"` (at the next layer) or `"done"`.
    """

    left: float
    phase: str = "merge"


def _to_previous(context: LayerContext) -> tuple[Tensor, Tensor]:
    """Compare every visual token with the previous one at the same spatial position.

    Returns:
        (n,) float32 cosines, -2 for the first token of a position; and (n,) int64, the tokens
        ordered by position, then by frame.
    """
    _, height, width = context.grid
    indices = context.visual_indices[context.previous_visual]
    # A newline token belongs to the row of the grid token before it.
    before = context.visual_indices.clamp(min=0).cummax(dim=0).values[context.previous_visual]
    spatial = before % (height * width)
    # A newline token is compared with the newline token of the same row.
    track = torch.where(indices < 0, height * width + spatial // width, spatial)
    order = track.sort(stable=True).indices
    states = context.states
    cosines = torch.full((len(order),), -2.0, device=states.device)
    for rows in row_blocks(len(order) - 1, states.shape[1], states.device):
        block = states.index_select(0, order[rows.start : rows.stop + 1]).float()
        lengths = torch.linalg.vector_norm(block, dim=-1).clamp_(min=1e-12)
        products = (block[1:] * block[:-1]).sum(dim=-1)
        cosines[rows.start + 1 : rows.stop + 1] = products / lengths[1:] / lengths[:-1]
    cosines[1:][track[order][1:] != track[order][:-1]] = -2.0
    return torch.empty_like(cosines).scatter_(0, order, cosines), order


def _fused(
    context: LayerContext, merges: Tensor, order: Tensor, count: int
) -> tuple[Tensor, Tensor]:
    """Average every run of merging tokens with the token it starts from.

    Args:
        context: The pruner's input.
        merges: (n,) bool, tokens that merge.
        order: (n,) int64, the tokens ordered by position, then by frame.
        count: k, the number of tokens that do not merge.

    Returns:
        (k,) ascending indices of the tokens that stay and their (k, D) float32 states.
    """
    starts = ~merges[order]
    kept, by_track = order[positions_of(starts, count)].sort()
    # Runs are numbered in the order of their first tokens.
    numbers = torch.empty_like(kept).scatter_(0, by_track, torch.arange(count, device=kept.device))
    labels = torch.empty_like(order).scatter_(0, order, numbers[starts.cumsum(dim=0) - 1])
    return kept, cluster_means(context.states, labels, len(kept))


def _most_attended(context: LayerContext, among: Tensor, count: int) -> Tensor:
    """The `count` (at least 1) tokens of `among` the last token attends to most, ascending."""
    scores = context.last_token_scores()[among]
    return among[top_positions(scores, max(1, count))]
