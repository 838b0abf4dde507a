"""EVS: keep the first frame, and of all others the places that changed most since the frame before.

Paper: "Efficient Video Sampling: Pruning Temporally Redundant Tokens for Faster VLM Inference",
Bagrov et al. 2025, https://arxiv.org/abs/2510.14624. The paper ranks patches by the difference of
their pixels; the released rule, followed here, ranks them by the cosine of their embeddings
(`compute_retention_mask` in vllm/multimodal/evs.py, the code behind `--video-pruning-rate`).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import torch

from tango_core.compressors.base import Compressor, num_kept, select
from tango_core.ops.saliency import rank_descending
from tango_core.ops.segmentation import adjacent_similarity
from tango_core.types import CompressedVideo, VisualFeatures


@dataclass(frozen=True)
class EVS(Compressor):
    """Keep the tokens that differ most from the token at the same place one frame earlier.

    The score is 1 - cosine, and larger than any other in the first frame; the highest scores of the
    whole clip stay, equal ones by position. Nothing is merged.

    Attributes:
        retention: Share of the tokens to keep, in (0, 1].
        budget: `"official"` keeps max(L, int(retention * T * L)) tokens: the first frame is never
            cut, so a clip with fewer than 1 / retention frames keeps more than its share (all of it
            if T = 1). `"exact"` keeps round(retention * T * L) tokens; if that is less than a
            frame, they are spread evenly over the first.
    """

    budget: Literal["official", "exact"] = "official"

    def _compress(self, features: VisualFeatures) -> CompressedVideo:
        """Rank the changes of the whole clip."""
        num_frames, tokens_per_frame, _ = features.tokens.shape
        total = num_frames * tokens_per_frame
        if self.budget == "official":
            kept = max(tokens_per_frame, int(total * self.retention))
        else:
            kept = num_kept(total, self.retention)
        if kept < tokens_per_frame:
            middles = (2 * torch.arange(kept) + 1) * tokens_per_frame
            return select(features, torch.div(middles, 2 * kept, rounding_mode="floor"))
        changes = 1 - adjacent_similarity(features.tokens)
        first = changes.new_full((1, tokens_per_frame), torch.inf)
        ranked = rank_descending(torch.cat([first, changes]).flatten())
        return select(features, ranked[:kept].sort().values)
