"""FastV: after a few layers, keep the visual tokens that the last text token attends to most.

Paper: "An Image is Worth 1/2 Tokens After Layer 2", Chen et al., ECCV 2024, Section 4.1,
https://arxiv.org/abs/2403.06764.
"""

from __future__ import annotations

from dataclasses import dataclass

from tango_core.compressors.base import LayerContext, Pruned, num_kept
from tango_core.compressors.in_llm.schedules import OneStepPruner
from tango_core.ops.saliency import top_positions


@dataclass(frozen=True)
class FastV(OneStepPruner):
    """Keep the visual tokens that the last prompt token attended to most in layer `layer - 1`.

    The budget is `round(n * share)` of the n visual tokens, newline tokens included, and at least
    one; the release has no minimum. Tokens keep their positions.

    Attributes:
        retention: Share of the visual tokens averaged over all layers. The local share it leads to
            (`OneStepPruner.local_retention`) is the paper's 1 - R, one half by default there.
        layer: The paper's K, 2 or 3 by default there: that many layers see all tokens, and the last
            of them gives the attention.
    """

    def prune(self, context: LayerContext) -> Pruned:
        """Rank by the last row of attention, averaged over heads; ties to the lowest position."""
        count = num_kept(context.num_left, self.local_retention(context.num_layers))
        return context.select(top_positions(context.last_token_scores(), count))
