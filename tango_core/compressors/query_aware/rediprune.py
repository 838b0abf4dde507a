"""ReDiPrune: keep tokens far from each other and near to the question, before the projector.

Paper: "ReDiPrune: Relevance-Diversity Pre-Projection Token Pruning for Efficient Multimodal LLMs",
Yu et al., 2026, https://arxiv.org/abs/2603.24680. Settings and arithmetic are those of the release
(UA-CVML/ReDiPrune@ba04aa4, `llavavid`).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import torch
import torch.nn.functional as F
from torch import Tensor

from tango_core.compressors.base import Combination, QuestionReading, keep
from tango_core.compressors.options import Strength
from tango_core.ops.budgets import first_of_groups, group_counts
from tango_core.types import VisualFeatures

# A longer question is represented by its last text tokens.
_MAX_QUESTION_TOKENS = 128


@dataclass(frozen=True)
class ReDiPrune(QuestionReading):
    """Keep round(retention * L) tokens of every frame, at least 1, chosen one by one.

    The first is the one most similar to the question; then always the token with the largest sum of
    its cosine distance to the nearest kept token and `alpha` times its similarity.

    Attributes:
        retention: Share of the tokens to keep, in (0, 1].
        alpha: Weight of the similarity to the question, at least 0.
        space: Where tokens are compared. `"tower"`: before the projector, as in the release, whose
            question vector is brought to the tower's width by averaging or repeating entries, so
            that the two spaces have no common meaning. `"projected"`: behind the projector, in the
            space of the question's embeddings (not in the release).
        budget: `"official"` rounds the count of every frame, `"exact"` keeps
            round(retention * T * L) tokens in all.
    """

    alpha: Strength = 0.5
    space: Literal["tower", "projected"] = "tower"
    budget: Literal["official", "exact"] = "official"

    @property
    def needs(self) -> frozenset[str]:
        """See `Compressor`."""
        return frozenset({"tower_tokens"} if self.space == "tower" else ())

    def _plan(self, features: VisualFeatures) -> Combination:
        tokens = features.signal("tower_tokens" if self.space == "tower" else "tokens")
        num_frames, tokens_per_frame, width = tokens.shape
        units = F.normalize(tokens.float(), dim=-1)
        question = _resized(_question_vector(features.signal("question").to(units)), width)
        relevance = units @ F.normalize(question, dim=0)
        distances = 1 - units @ units.transpose(1, 2)
        scores, nearest = relevance.clone(), torch.full_like(relevance, torch.inf)
        counts = group_counts(num_frames, tokens_per_frame, self.retention, self.budget)
        chosen = torch.empty(num_frames, max(counts), dtype=torch.int64, device=tokens.device)
        frames = torch.arange(num_frames, device=tokens.device)
        is_open = torch.ones_like(relevance, dtype=torch.bool)
        for step in range(max(counts)):
            best = scores.masked_fill(~is_open, -torch.inf).argmax(dim=1)
            chosen[:, step] = best
            is_open[frames, best] = False
            nearest = torch.minimum(nearest, distances[frames, best])
            scores = nearest + self.alpha * relevance
        chosen += frames[:, None] * tokens_per_frame
        return keep(features, first_of_groups(chosen, counts).sort().values)


def _question_vector(rows: Tensor) -> Tensor:
    """(D,) weighted sum of (M, D) embeddings that attend to each other by their cosines.

    Weights grow by a factor e^3 from the first to the last token.
    """
    rows = rows[-_MAX_QUESTION_TOKENS:]
    units = F.normalize(rows, dim=-1, eps=1e-12)
    context = (units @ units.T).softmax(dim=-1) @ rows
    weights = torch.exp(3 * torch.linspace(0, 1, len(rows), device=rows.device))
    return (context * (weights / weights.sum())[:, None]).sum(dim=0)


def _resized(vector: Tensor, width: int) -> Tensor:
    """A vector of another width: means of neighbouring entries, or repeated entries."""
    if len(vector) < width:
        return vector.repeat(-(-width // len(vector)))[:width]
    return F.adaptive_avg_pool1d(vector[None], width)[0]
