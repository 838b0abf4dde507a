"""SparseVLM: text tokens that match the clip rank its tokens; some dropped tokens are recycled.

Paper: "SparseVLM: Visual Token Sparsification for Efficient Vision-Language Model Inference", Zhang
et al., ICML 2025, Section 3, https://arxiv.org/abs/2410.04417.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from tango_core.compressors.base import LayerContext, Pruned
from tango_core.compressors.in_llm.schedules import StagedPruner
from tango_core.compressors.options import Count, Ratio
from tango_core.errors import InputError
from tango_core.ops.budgets import floor_share
from tango_core.ops.clustering import assign_to_centers, density_peaks, squared_distances
from tango_core.ops.merging import cluster_means
from tango_core.ops.saliency import positions_of, rank_descending

_RATERS = "sparsevlm.raters"


@dataclass(frozen=True)
class SparseVLM(StagedPruner):
    """Keep the visual tokens that selected text tokens (raters) attend to most; merge some others.

    Before the first layer, the text tokens after the clip whose embeddings match the clip's better
    than average become raters. After layers 2, 6 and 15 the mean attention of the raters ranks the
    visual tokens; of the dropped tokens, the best-ranked `recycled` share is clustered by density
    peaks, and every cluster's mean stays as one token.

    The release has tables for the 576 tokens of LLaVA-1.5 (300, 200 and 110 kept for "192") and
    adds the recycled tokens on top; the paper's rank-based number of tokens is not in its code.
    Here the table is scaled to `retention` by `StagedPruner`, and recycled tokens count: a stage's
    total is `round(n * share)`, at least 1, of the prompt's n visual tokens. A recycled
    token gets the position of its cluster's centre, so that temporal order is kept; the release
    appends them after the kept tokens. As in the release, every layer numbers its remaining tokens
    contiguously.

    Attributes:
        retention: Share of the visual tokens averaged over all layers.
        layer: Minimum number of layers that see all tokens, if the target allows it; see
            `StagedPruner`.
        stages: Layers whose inputs are pruned, by the attention of the layer before; `None` for 3,
            7 and 16 (in a shallower language model, layers at the same fractions of its depth).
        ratios: Shares of the tokens kept after each stage; default: the release's table for 192
            tokens.
        recycled: Share of the dropped tokens that is clustered, in [0, 1]; the paper's tau = 0.3.
        tokens_per_cluster: The paper's theta; 10.
    """

    renumbers: ClassVar[bool] = True
    first_layer: ClassVar[int] = 1  # a stage needs the attention of the previous layer
    ratios: tuple[float, ...] = (300 / 576, 200 / 576, 110 / 576)
    recycled: Ratio = 0.3
    tokens_per_cluster: Count = 10

    def __post_init__(self) -> None:
        """Check the options."""
        super().__post_init__()
        if self.stages is None and len(self.ratios) != 3:
            raise InputError(
                f"ratios must have 3 numbers unless stages are given, got {len(self.ratios)}"
            )

    def published_stages(self, num_layers: int) -> tuple[int, ...]:
        """After layers 2, 6 and 15, which the release uses for 32 layers and for 40."""
        published = (3, 7, 16)
        if published[-1] < num_layers:
            return published
        return tuple(
            max(index + 1, stage * num_layers // 32) for index, stage in enumerate(published)
        )

    def layers(self, num_layers: int) -> tuple[int, ...]:
        """Layer 0, where the raters are chosen, and the stages."""
        return (0, *super().layers(num_layers))

    def prune(self, context: LayerContext) -> Pruned:
        """Choose the raters at layer 0; at a stage, rank, keep and recycle.

        The only read from the device is the number of raters, at layer 0.
        """
        if context.layer == 0:
            context.scratch[_RATERS] = _raters(context)
            return context.select(torch.arange(context.num_left, device=context.hidden.device))
        share = self.schedule(context.num_layers)[context.layer]
        total = min(context.num_left, max(1, round(context.num_visual * share)))
        clusters, num_candidates = self._recycling(context.num_left, total)
        rows = context.scratch[_RATERS] + context.after
        scores = context.attention(rows)[..., context.visual].mean(dim=(0, 1))
        ranked = rank_descending(scores)
        best = ranked[: total - clusters]
        if not clusters:
            return context.select(best.sort().values)
        candidates = ranked[len(best) : len(best) + num_candidates].sort().values
        centers, means = _clustered(context.states[candidates].float(), clusters)
        kept, order = torch.cat([best, candidates[centers]]).sort()
        keep = context.positions_with(kept)
        hidden = context.hidden.index_select(0, keep)
        is_mean = positions_of(order >= len(best), clusters)
        recycled = means[order[is_mean] - len(best)]
        hidden.index_copy_(0, context.places_of(kept)[is_mean], recycled.to(hidden.dtype))
        return Pruned(keep, hidden)

    def _recycling(self, current: int, total: int) -> tuple[int, int]:
        """Number of clusters among `total` tokens, and number of dropped tokens that they merge.

        The release keeps a given number and adds the clusters; here the number of kept
        tokens is the largest one for which the clusters fit into the total. At least one token is
        kept unchanged.
        """
        if self.recycled == 0 or total == current:
            return 0, 0
        for kept in range(total - 1, 0, -1):
            dropped = current - kept
            candidates = min(dropped, floor_share(dropped, self.recycled) + 1)
            clusters = min(candidates, candidates // self.tokens_per_cluster + 1)
            if kept == 1 or kept + clusters <= total:
                return total - kept, candidates
        return 0, 0


def _raters(context: LayerContext) -> Tensor:
    """(r,) int64 text tokens after the clip that match it better than average; all if none do."""
    similarity = context.states.float() @ context.hidden[context.after :].float().mT
    relevance = similarity.softmax(dim=-1).mean(dim=0)
    raters = (relevance > relevance.mean()).nonzero()[:, 0]
    return raters if len(raters) else torch.arange(len(relevance), device=context.hidden.device)


def _clustered(states: Tensor, num_clusters: int) -> tuple[Tensor, Tensor]:
    """Cluster (m, D) states: (c,) indices of the centres and (c, D) means of the members.

    The density estimate uses as many neighbours as there are clusters, including the token itself.
    """
    distances = squared_distances(states[None]) / states.shape[1]
    centers = density_peaks(distances, num_clusters, num_clusters, include_self=True)
    labels = assign_to_centers(distances, centers)[0]
    return centers[0], cluster_means(states, labels, num_clusters)
