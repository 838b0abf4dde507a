"""PyramidDrop: drop visual tokens in stages, more in deeper layers.

Paper: "PyramidDrop: Accelerating Your Large Vision-Language Models via Pyramid Visual Redundancy
Reduction", Xing et al., CVPR 2025, Section 3, https://arxiv.org/abs/2410.17247.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from tango_core.compressors.base import LayerContext, Pruned
from tango_core.compressors.in_llm.schedules import StagedPruner
from tango_core.ops.budgets import floor_share
from tango_core.ops.saliency import top_positions


@dataclass(frozen=True)
class PyramidDrop(StagedPruner):
    """At every stage keep the visual tokens that the last prompt token attends to most.

    A stage uses the attention of the layer that follows it. The published stages are at layers 8,
    16 and 24 of 32, each keeping half of the remaining tokens, which averages to 0.46875. Here they
    are the quarter points of the layers (7, 14, 21 of 28), and the shares are scaled to `retention`
    by `StagedPruner`; 0.46875 gives the published schedule.

    The budget of a stage is `int(n * share)` of the prompt's n visual tokens, newline tokens
    included, and at least one. As in the release, every layer numbers its remaining tokens
    contiguously, also while decoding.

    Attributes:
        retention: Share of the visual tokens averaged over all layers.
        layer: Minimum number of layers that see all tokens, if the target allows it; see
            `StagedPruner`.
        stages: Layers whose inputs are pruned; `None` for the quarter points.
        ratios: Published shares of the original tokens kept after each stage.
    """

    renumbers: ClassVar[bool] = True
    first_layer: ClassVar[int] = 0  # a stage uses the attention of the following layer

    ratios: tuple[float, ...] = (0.5, 0.25, 0.125)

    def attention_layers(self, num_layers: int) -> tuple[int, ...]:
        """The stages themselves."""
        return self.layers(num_layers)

    def published_stages(self, num_layers: int) -> tuple[int, ...]:
        """The points that divide the layers into equal parts, 7, 14 and 21 of 28."""
        parts = len(self.ratios) + 1
        return tuple(part * num_layers // parts for part in range(1, parts))

    def prune(self, context: LayerContext) -> Pruned:
        """Rank by the last row of the next layer's attention; ties to the lowest position."""
        share = self.schedule(context.num_layers)[context.layer]
        count = min(context.num_left, max(1, floor_share(context.num_visual, share)))
        return context.select(top_positions(context.last_token_scores(ahead=True), count))
