"""FastV with merging: merge the tokens with little attention into the most similar kept ones.

The in-LLM step of HoliTom (Shao et al. 2025) as Tango's "dagger" setting uses it: attention decides
who stays, as in FastV (Chen et al., ECCV 2024), and what goes is merged instead of lost. Two things
differ from the release: the attention row is causal (the release runs the scored layer without a
mask), and similarities are float32.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch

from tango_core.compressors.base import LayerContext, LayerPruner, Pruned, num_kept
from tango_core.compressors.options import raise_if_outside
from tango_core.errors import InputError
from tango_core.ops.merging import cluster_sizes, cluster_sums, most_similar
from tango_core.ops.saliency import rank_descending


@dataclass(frozen=True)
class FastVMerge(LayerPruner):
    """Keep what the last prompt token attends to most; merge the rest into it by similarity.

    Attributes:
        retention: Share of the visual tokens (newline tokens included) kept from `layer` on, in (0,
            1].
        layer: 0-based layer whose input is pruned; the attention is that of the layer before it, so
            at least 1.
        beta: Weight of a kept token's own state against the mean of itself and what it absorbs, in
            [0, 1].
    """

    retention: float = 0.5
    layer: int = 18
    beta: float = 0.6

    def __post_init__(self) -> None:
        """Check the options."""
        super().__post_init__()
        if self.layer < 1:
            raise InputError(
                f"layer must be 1 or larger, since layer - 1 gives the attention; got {self.layer}"
            )
        raise_if_outside(self, 0, 1, "beta")

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
