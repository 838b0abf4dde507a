"""FrameFusion: merge what repeats the previous frame, layer by layer, then prune once by attention.

Paper: "FrameFusion: Combining Similarity and Importance for Video Token Reduction on Large Vision
Language Models", Fu et al., ICCV 2025, https://arxiv.org/abs/2501.01986. The steps follow the
release (thu-nics/FrameFusion).
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from tango_core.compressors.base import LayerContext, LayerPruner, Pruned
from tango_core.compressors.options import raise_if_outside
from tango_core.errors import InputError
from tango_core.ops.blocks import row_blocks
from tango_core.ops.merging import cluster_means
from tango_core.ops.saliency import positions_of, top_positions

_STATE = "framefusion"
PUBLISHED_COST = 0.3


@dataclass(frozen=True)
class FrameFusion(LayerPruner):
    """Average runs of tokens that stay alike from frame to frame; cut once to meet the budget.

    At the input of every layer, each token is compared with the one before it at the same spatial
    position; where the cosine is `similarity` or more it merges, and a run of such tokens becomes
    their mean at the run's first token. Once fewer than `min_merged` of the tokens merge, one cut
    by attention in the next layer spreads what is left of the budget over the remaining layers.
    If more would merge than the budget needs, only the most similar ones do, and pruning ends.
    How many tokens a layer sees thus depends on the clip; their average over the layers is
    `retention`, up to rounding.

    The release acts between attention and MLP of every layer, this at the inputs of layers: the MLP
    of one more layer runs before each step, the attention and the accounting are the same. Where
    merging leaves nothing for later layers, or goes on to the last one, the release raises or
    exceeds its budget; here the cut is made at that layer. Newline tokens count as one more column
    of the grid. Tokens keep their positions.

    Attributes:
        retention: Share of the visual tokens averaged over all layers; the release's cost, 0.3.
        layer: Earliest layer for the cut, where the target allows; merging begins at layer 0 and
            goes on until the layer before the cut. The release has no such bound: a clip that
            hardly merges is cut at layer 1, always. For a `retention` below 0.45 that is so here
            too, since the layers before the cut are to take no larger part of the budget than at
            the release's cost. From 0.45 up such a clip is cut at layer 2, one layer later than the
            release would, and harder for it, the average being the same: 2 is the first layer of
            pruning of all in-LLM methods here, so that they are compared alike. `layer=1` is the
            release's rule at every retention.
        similarity: Cosine from which a token merges; 0.6 in the release.
        min_merged: Share of the current tokens below which merging ends; 0.1 in the release.
    """

    layer: int = 2
    similarity: float = 0.6
    min_merged: float = 0.1

    def __post_init__(self) -> None:
        """Check the options."""
        super().__post_init__()
        raise_if_outside(self, -1, 1, "similarity")
        raise_if_outside(self, 0, 1, "min_merged")

    def layers(self, num_layers: int) -> tuple[int, ...]:
        """All layers: how long merging goes on is decided by the clip.

        Raises:
            ValueError: If the first layer alone can use up the average.
        """
        if self.retention < 1 and self.retention * num_layers <= 1:
            raise InputError(
                f"retention {self.retention} cannot be reached with layer={self.layer} nor any "
                f"other: all tokens pass the first layer, which in 1 of {num_layers} layers "
                f"average to {1 / num_layers:.6g}; raise retention above that"
            )
        return tuple(range(num_layers))

    def layer_shares(self, num_layers: int) -> tuple[float, ...]:
        """`retention` in every layer, as if the budget were met by merging at once.

        Only the mean is a promise: a clip that merges slowly has more tokens in early layers and
        fewer in late ones.
        """
        return (self.retention,) * len(self.layers(num_layers))

    def prune(self, context: LayerContext) -> Pruned:
        """Merge, cut, or pass everything on, by how far this prompt has come."""
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
        """Whether the cut may stand before this layer."""
        return layer >= min(self.layer, max(1, round(self.retention / PUBLISHED_COST)))

    def _merge(self, context: LayerContext, budget: _Budget, allowed: float) -> Pruned:
        """Merge what is similar enough, and decide how to go on.

        The host reads from the device once: how many tokens merge.

        Args:
            context: At the input of the layer.
            budget: Changed to what is left after this layer.
            allowed: Tokens per layer that the budget leaves from here on, at most those there are.
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
        # Always so at the last layer: more than the budget would have merged there otherwise.
        if budget.left <= len(kept):
            budget.phase = "done"
            chosen = _most_attended(context, kept, round(allowed))
            return context.select_merged(chosen, states[torch.searchsorted(kept, chosen)])
        budget.left -= len(kept)
        return context.select_merged(kept, states)


@dataclass
class _Budget:
    """How far one prompt has come.

    Attributes:
        left: Visual tokens, summed over the layers still to run, that may enter them.
        phase: `"merge"`, `"cut"` (at the next layer) or `"done"`.
    """

    left: float
    phase: str = "merge"


def _to_previous(context: LayerContext) -> tuple[Tensor, Tensor]:
    """Compare every visual token with the one before it at the same spatial position.

    Returns:
        (n,) float32 cosines, -2 for the first token of a position; and (n,) int64, the tokens
        ordered by position, then by frame.
    """
    _, height, width = context.grid
    indices = context.visual_indices[context.previous_visual]
    # A newline token ends a row: it belongs to the row of the grid token before it.
    before = context.visual_indices.clamp(min=0).cummax(dim=0).values[context.previous_visual]
    spatial = before % (height * width)
    # A newline token is compared with that of the same row.
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
        context: At the input of the layer.
        merges: (n,) bool, tokens that merge.
        order: (n,) int64, the tokens ordered by position, then by frame.
        count: Tokens that do not merge, k.

    Returns:
        (k,) ascending indices of the tokens that stay and their (k, D) float32 states.
    """
    starts = ~merges[order]
    kept, by_track = order[positions_of(starts, count)].sort()
    # Runs are numbered by their first tokens, as these are kept in order.
    numbers = torch.empty_like(kept).scatter_(0, by_track, torch.arange(count, device=kept.device))
    labels = torch.empty_like(order).scatter_(0, order, numbers[starts.cumsum(dim=0) - 1])
    return kept, cluster_means(context.states, labels, len(kept))[0]


def _most_attended(context: LayerContext, among: Tensor, count: int) -> Tensor:
    """The `count` (at least one) of `among` that the last token attends to most, ascending."""
    scores = context.last_token_scores()[among]
    return among[top_positions(scores, max(1, count))]
