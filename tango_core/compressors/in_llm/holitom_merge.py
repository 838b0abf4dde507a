"""HoliTom's step inside the language model: attention decides who stays, the others are halved in.

Paper: "HoliTom: Holistic Token Merging for Fast Video Large Language Models", Shao et al., NeurIPS
2025, Section 3.4, https://arxiv.org/abs/2505.21334; the release's "M". It is the inner step of
`holitom`.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch

from tango_core.compressors.base import LayerContext, LayerPruner, Pruned, num_kept
from tango_core.errors import InputError
from tango_core.ops.merging import cluster_sums, most_similar
from tango_core.ops.saliency import rank_descending


@dataclass(frozen=True)
class HoliTomMerge(LayerPruner):
    """Keep the most attended visual tokens; every other is averaged into its most similar kept one.

    The release averages one dropped token after the other, h <- (h + dropped) / 2, in their order:
    of m tokens merged into one, the last weighs 1/2, the one before 1/4, the first 2^-m, and the
    kept token itself 2^-m. Those weights are applied at once here. Similarities are taken before
    any merging, in float32.

    Attributes:
        retention: Share of the visual tokens (newline tokens included) kept from `layer` on, in (0,
            1]; one half in the release.
        layer: 0-based layer whose input is pruned; the attention is that of the layer before it.
            18 of 28 in the release.
    """

    retention: float = 0.5
    layer: int = 18

    def __post_init__(self) -> None:
        """Check the options."""
        super().__post_init__()
        if self.layer < 1:
            raise InputError(
                f"layer must be 1 or larger, since layer - 1 gives the attention; got {self.layer}"
            )

    def prune(self, context: LayerContext) -> Pruned:
        """Rank by the last row of attention; merge what goes by cosine of the hidden states."""
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
