"""DART: keep the tokens least similar to a few pivot tokens, to avoid redundancy.

Paper: "Stop Looking for Important Tokens in Multimodal Language Models: Duplication Matters More",
Wen et al., EMNLP 2025, Section 3, https://arxiv.org/abs/2502.11494. The steps follow the
implementation in ModelTC/LightCompress.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import torch
import torch.nn.functional as F
from torch import Tensor

from tango_core.compressors.base import LayerContext, Pruned
from tango_core.compressors.in_llm.schedules import OneStepPruner
from tango_core.compressors.options import Count, Index
from tango_core.ops.blocks import row_blocks
from tango_core.ops.budgets import floor_share
from tango_core.ops.saliency import positions_of, rank_descending, top_positions


@dataclass(frozen=True)
class DART(OneStepPruner):
    """Choose pivots by the L1 norm of their keys; for each, keep the tokens least similar to it.

    Every pivot in turn takes the `int(n * share / pivots)` remaining visual tokens of lowest cosine
    to it, after the language model's final norm. Visual pivots stay as
    well, so up to `visual_pivots` more tokens are kept than the share says, or fewer by the
    rounding down.
    Tokens keep their positions.

    Attributes:
        retention: Share of the visual tokens averaged over all layers.
        layer: Number of layers that see all tokens; the last of them provides the keys.
        visual_pivots: Visual tokens among the pivots; 4 in the release.
        text_pivots: Tokens after the clip among the pivots; 4 in the release.
        pivot_order: `"score"`: visual pivots by descending norm, then text pivots likewise.
            `"official"`: the order in which CPython iterates a set of their positions, as in the
            release. The order decides which pivot takes a token that several would take.
    """

    visual_pivots: Count = 4
    text_pivots: Index = 4
    pivot_order: Literal["score", "official"] = "score"

    def prune(self, context: LayerContext) -> Pruned:
        """Assign tokens pivot by pivot; ties go to the lowest position."""
        visual, device = context.visual, context.hidden.device
        share = self.local_retention(context.num_layers)
        if share == 1:
            return context.select(torch.arange(context.num_left, device=device))
        # Like the release, divide by the nominal number of pivots, even if the text has fewer.
        per_pivot = floor_share(context.num_left, share / (self.visual_pivots + self.text_pivots))
        norms = context.keys().float().abs().sum(dim=-1)
        own = rank_descending(norms[visual])[: self.visual_pivots]
        text = rank_descending(norms[context.after :])[: self.text_pivots] + context.after
        pivots = torch.cat([visual[own], text])
        if self.pivot_order == "official":
            pivots = torch.tensor(list(set(pivots.tolist())), device=device)
        taken = torch.zeros(context.num_left, dtype=torch.bool, device=device)
        taken.index_fill_(0, own, True)
        free = context.num_left - len(own)
        for similarity in self._similarities(context, pivots):
            count = min(per_pivot, free)
            # The lowest cosines are the highest negated ones.
            farthest = top_positions((-similarity).masked_fill(taken, -torch.inf), count)
            taken.index_fill_(0, farthest, True)
            free -= count
        return context.select(positions_of(taken, context.num_left - free))

    def _similarities(self, context: LayerContext, pivots: Tensor) -> Tensor:
        """(pivots, n) float32 cosines of every pivot with every visual token."""
        hidden = context.states
        units = F.normalize(context.norm(context.hidden[pivots]).float(), dim=-1)
        cosines = units.new_empty(len(pivots), len(hidden))
        for rows in row_blocks(len(hidden), hidden.shape[1], hidden.device):
            states = context.norm(hidden[rows]).float()
            lengths = torch.linalg.vector_norm(states, dim=-1).clamp_(min=1e-12)
            torch.div(units @ states.mT, lengths, out=cosines[:, rows])
        return cosines
