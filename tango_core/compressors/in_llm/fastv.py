"""FastV: after a few layers, keep the visual tokens that the last text token attends to most.

Paper: "An Image is Worth 1/2 Tokens After Layer 2", Chen et al., ECCV 2024, Section 4.1,
https://arxiv.org/abs/2403.06764. `FastV` is the stand-alone method; the other classes are
inner steps of hybrid methods with the same selection.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch

from tango_core.compressors.base import LayerContext, LayerPruner, Pruned, num_kept
from tango_core.compressors.in_llm.schedules import OneStepPruner
from tango_core.compressors.options import Count, Ratio
from tango_core.ops.budgets import ceil_share
from tango_core.ops.merging import cluster_sizes, cluster_sums, most_similar
from tango_core.ops.saliency import rank_descending, top_positions


@dataclass(frozen=True)
class FastV(OneStepPruner):
    """Keep the visual tokens that the last prompt token attended to most in layer `layer - 1`.

    The budget is `round(n * share)` of the n visual tokens, newline tokens included, and at least
    one; the release has no minimum. Tokens keep their positions.

    Attributes:
        retention: Share of the visual tokens averaged over all layers. The resulting local share
            (`OneStepPruner.local_retention`) is the paper's 1 - R, there one half by default.
        layer: The paper's K, there 2 or 3 by default: the number of layers that see all tokens; the
            last of them provides the attention.
    """

    def prune(self, context: LayerContext) -> Pruned:
        """Rank by the last row of attention, averaged over heads; ties to the lowest position."""
        count = num_kept(context.num_left, self.local_retention(context.num_layers))
        return context.select(top_positions(context.last_token_scores(), count))


@dataclass(frozen=True)
class InnerStep(LayerPruner):
    """A step that ranks by the attention of layer `layer - 1`, so `layer` is at least 1."""

    layer: Count


@dataclass(frozen=True)
class FastVStep(InnerStep):
    """Keep the ceil(retention * n) of n visual tokens the last prompt token attends to most.

    The inner step of FlashVID (arXiv 2602.08024), which passes more tokens to the language model
    and compensates for them with this step. The count is rounded up, as released.

    Tokens keep their positions; newline tokens among the visual ones are ranked like the others.

    Attributes:
        retention: Share of the visual tokens kept from `layer` on, in (0, 1].
        layer: 0-based layer whose input is pruned; the attention is that of the layer before it, so
            at least 1. 20 of 28 in FlashVID's release.
    """

    retention: float = 0.3
    layer: int = 20

    def prune(self, context: LayerContext) -> Pruned:
        """Rank by the last row of attention, averaged over heads; ties to the lowest position."""
        count = min(context.num_left, ceil_share(context.num_left, self.retention))
        return context.select(top_positions(context.last_token_scores(), count))


@dataclass(frozen=True)
class FastVMerge(InnerStep):
    """Keep the visual tokens that the last prompt token attends to most; merge the rest into them.

    The in-LLM step of HoliTom as Tango's "dagger" setting uses it. Two things differ from the
    release: the attention row is causal (the release runs the scored layer without a mask), and
    similarities are float32.

    Attributes:
        retention: Share of the visual tokens (newline tokens included) kept from `layer` on, in (0,
            1].
        layer: 0-based layer whose input is pruned; the attention is that of the layer before it, so
            at least 1.
        beta: Weight of a kept token's own state against the mean of itself and the tokens merged
            into it, in [0, 1].
    """

    retention: float = 0.5
    layer: int = 18
    beta: Ratio = 0.6

    def prune(self, context: LayerContext) -> Pruned:
        """Rank by the last row of attention, averaged over heads; merge by cosine."""
        ranked = rank_descending(context.last_token_scores())
        count = num_kept(context.num_left, self.retention)
        kept, dropped = ranked[:count].sort().values, ranked[count:].sort().values
        states = context.states
        nearest = most_similar(states, dropped, kept)
        absorbed = cluster_sizes(nearest, count).float()
        share = (1 - self.beta) / (1 + absorbed)
        own = (share + self.beta).masked_fill(absorbed == 0, 1.0)
        merged = cluster_sums(
            states,
            torch.cat([torch.arange(count, device=kept.device), nearest]),
            count,
            torch.cat([own, share[nearest]]),
            sources=torch.cat([kept, dropped]),
        )
        return context.select_merged(kept, merged)


@dataclass(frozen=True)
class HoliTomMerge(InnerStep):
    """Keep the most attended visual tokens; average every other into its most similar kept token.

    Paper: "HoliTom: Holistic Token Merging for Fast Video Large Language Models", Shao et al.,
    NeurIPS 2025, Section 3.4, https://arxiv.org/abs/2505.21334; the release's "M", the inner step
    of `holitom`.

    The release averages dropped tokens sequentially, h <- (h + dropped) / 2: of m tokens merged
    into one, the last has weight 1/2, the one before 1/4, the first 2^-m, and the kept token itself
    2^-m. Here these weights are applied in one step. Similarities are computed before any merging,
    in float32.

    Attributes:
        retention: Share of the visual tokens (newline tokens included) kept from `layer` on, in (0,
            1]; one half in the release.
        layer: 0-based layer whose input is pruned; the attention is that of the layer before it.
            18 of 28 in the release.
    """

    retention: float = 0.5
    layer: int = 18

    def prune(self, context: LayerContext) -> Pruned:
        """Rank by the last row of attention; merge dropped tokens by cosine of hidden states."""
        count = num_kept(context.num_left, self.retention)
        ranked = rank_descending(context.last_token_scores())
        kept, dropped = ranked[:count].sort().values, ranked[count:].sort().values
        states = context.states
        nearest = most_similar(states, dropped, kept)
        order = nearest.sort(stable=True)
        bounds = torch.arange(count, device=kept.device)
        ends = torch.searchsorted(order.values, bounds, right=True)
        counts = ends - torch.searchsorted(order.values, bounds)
        still_to_come = ends[order.values] - torch.arange(len(order.values), device=kept.device)
        merged = cluster_sums(
            states,
            torch.cat([bounds, order.values]),
            count,
            torch.exp2(-torch.cat([counts, still_to_come]).float()),
            sources=torch.cat([kept, dropped[order.indices]]),
        )
        return context.select_merged(kept, merged)
