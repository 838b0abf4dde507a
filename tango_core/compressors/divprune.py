"""DivPrune: keep the subset of tokens whose closest pair is as far apart as possible.

Paper: "DivPrune: Diversity-based Visual Token Pruning for Large Multimodal Models", Alvar et al.,
CVPR 2025, Section 3 (max-min diversity, solved greedily), https://arxiv.org/abs/2503.02175.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
import torch.nn.functional as F

from tango_core.combination import Combination
from tango_core.compressors.base import ExactBudget, keep, num_kept
from tango_core.ops.clustering import squared_distances
from tango_core.types import VisualFeatures


@dataclass(frozen=True)
class DivPrune(ExactBudget):
    """Keep `round(retention * T * L)` tokens by farthest-point sampling over the whole clip.

    Distance is 1 - cosine. The first token is the one whose nearest other token is farthest; then
    always the token with the largest distance to the kept tokens follows; ties go to the lowest
    position. Copies of a kept token come last. The kept tokens are returned by position, not in
    the order of selection.

    Needs a float32 matrix of (T * L)^2 distances (157 MB for 32 frames of 196 tokens, 468 MB
    for 64 of 169).

    Attributes:
        retention: Share of the tokens to keep, in (0, 1].
    """

    def _plan(self, features: VisualFeatures) -> Combination:
        """Select tokens one by one, without device synchronisation."""
        tokens = features.tokens.flatten(0, 1)
        wanted = num_kept(len(tokens), self.retention)
        # |u - v|^2 = 2 (1 - cosine) for unit vectors, so squared distances give the same order.
        distances = squared_distances(F.normalize(tokens.float(), dim=-1)[None])[0]
        gaps = distances.fill_diagonal_(torch.inf).amin(dim=1)
        distances.fill_diagonal_(-1.0)
        chosen = torch.empty(wanted, dtype=torch.int64, device=tokens.device)
        for step in range(wanted):
            best = gaps.argmax(dim=0, keepdim=True)
            chosen[step : step + 1] = best
            row = distances.index_select(0, best)[0]
            gaps = row if step == 0 else torch.minimum(gaps, row, out=gaps)
        return keep(features, chosen.sort().values)
