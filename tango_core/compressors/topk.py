"""TopK: keep the highest-scoring visual tokens of every frame; redundancy is ignored."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, Literal

import torch

from tango_core.combination import Combination
from tango_core.compressors.base import Compressor, keep, num_kept
from tango_core.ops.saliency import rank_descending
from tango_core.types import VisualFeatures


@dataclass(frozen=True)
class TopK(Compressor):
    """Keep `round(retention * T * L)` tokens: the highest-scoring ones of every frame.

    Equal scores go to the lowest position.

    Scores are normalised within a frame, so they rank tokens inside a frame and not across frames:
    the budget is spread over the frames as evenly as whole tokens allow.

    Attributes:
        retention: Share of the tokens to keep, in (0, 1].
        score: `"saliency"` (p-attn) or `"attention"` (attn) of `VisualFeatures`.
        budget: `"exact"`, the only one: said so that a recipe may ask every method for it.
    """

    added_options: ClassVar[Mapping[str, Any]] = {"budget": "exact"}

    score: Literal["saliency", "attention"] = "saliency"
    budget: Literal["exact"] = "exact"

    @property
    def needs(self) -> frozenset[str]:
        """The score it ranks by."""
        return frozenset({self.score})

    def _plan(self, features: VisualFeatures) -> Combination:
        """Rank within each frame and cut at the frame's quota."""
        scores = getattr(features, self.score)
        num_frames, tokens_per_frame = scores.shape
        kept = num_kept(num_frames * tokens_per_frame, self.retention)
        bounds = torch.arange(num_frames + 1) * kept // num_frames
        quotas = (bounds[1:] - bounds[:-1]).tolist()
        columns = [
            torch.arange(quota) + frame * tokens_per_frame for frame, quota in enumerate(quotas)
        ]
        ranked = rank_descending(scores.float())
        offsets = torch.arange(num_frames, device=scores.device)[:, None] * tokens_per_frame
        flat = (ranked + offsets).reshape(-1)[torch.cat(columns).to(scores.device)]
        return keep(features, flat.sort().values)
