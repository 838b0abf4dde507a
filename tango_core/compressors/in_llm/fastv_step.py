"""FastV's selection as the step inside the language model of FlashVID: a share of what is left.

FlashVID (arXiv 2602.08024) lets a larger budget into the language model and pays for it here. The
selection is that of FastV (Chen et al., ECCV 2024); its count is rounded up, as released.
"""

from __future__ import annotations

from dataclasses import dataclass

from tango_core.compressors.base import LayerContext, LayerPruner, Pruned
from tango_core.errors import InputError
from tango_core.ops.budgets import ceil_share
from tango_core.ops.saliency import top_positions


@dataclass(frozen=True)
class FastVStep(LayerPruner):
    """Keep the ceil(retention * n) of n visual tokens the last prompt token attends to most.

    Tokens keep their positions; newline tokens among the visual ones are ranked like the others.

    Attributes:
        retention: Share of the visual tokens kept from `layer` on, in (0, 1].
        layer: 0-based layer whose input is pruned; the attention is that of the layer before it, so
            at least 1. 20 of 28 in FlashVID's release.
    """

    retention: float = 0.3
    layer: int = 20

    def __post_init__(self) -> None:
        """Check the options."""
        super().__post_init__()
        if self.layer < 1:
            raise InputError(
                f"layer must be 1 or larger, since layer - 1 gives the attention; got {self.layer}"
            )

    def prune(self, context: LayerContext) -> Pruned:
        """Rank by the last row of attention, averaged over heads; ties to the lowest position."""
        count = min(context.num_left, ceil_share(context.num_left, self.retention))
        return context.select(top_positions(context.last_token_scores(), count))
