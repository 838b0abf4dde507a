"""EVS: keep the first frame, and of later frames the tokens that changed most.

Paper: "Efficient Video Sampling: Pruning Temporally Redundant Tokens for Faster VLM Inference",
Bagrov et al. 2025, https://arxiv.org/abs/2510.14624. The paper ranks patches by the difference of
their pixels; the released rule, followed here, ranks them by the cosine of their embeddings
(`compute_retention_mask` in vllm/multimodal/evs.py, the code behind `--video-pruning-rate`).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, Literal

import torch
import torch.nn.functional as F
from torch import Tensor

from tango_core.combination import Combination
from tango_core.compressors.base import Compressor, ScoredRow, keep, num_kept, scored_row
from tango_core.ops.budgets import floor_share
from tango_core.ops.saliency import top_positions
from tango_core.types import VisualFeatures


@dataclass(frozen=True)
class EVS(Compressor):
    """Keep the tokens that differ most from the token at the same position one frame earlier.

    The score is 1 - cosine; tokens of the first frame score higher than all others. The highest
    scores of the whole clip are kept, ties by position. Nothing is merged.

    Attributes:
        retention: Share of the tokens to keep, in (0, 1].
        budget: `"exact"` keeps round(retention * T * L) tokens; if that is less than a frame, they
            are spread evenly over the first frame. `"official"` keeps max(L, int(retention * T *
            L)): the first frame is always kept whole, so a clip of fewer than 1 / retention frames
            keeps more than its share, and everything if T = 1. For longer clips the two differ by
            at most one token.
        row: Values that tokens are compared by: `"main"`, or `"deepstack"`, the tokens and their
            DeepStack rows together, as in vLLM for Qwen3-VL.
    """

    added_options: ClassVar[Mapping[str, Any]] = {"row": "main"}

    budget: Literal["exact", "official"] = "exact"
    row: ScoredRow = "main"

    def _plan(self, features: VisualFeatures) -> Combination:
        """Rank the changes of the whole clip."""
        num_frames, tokens_per_frame, _ = features.tokens.shape
        total = num_frames * tokens_per_frame
        if self.budget == "official":
            kept = max(tokens_per_frame, floor_share(total, self.retention))
        else:
            kept = num_kept(total, self.retention)
        if kept < tokens_per_frame:
            middles = (2 * torch.arange(kept) + 1) * tokens_per_frame
            return keep(features, torch.div(middles, 2 * kept, rounding_mode="floor"))
        changes = _changes(scored_row(features, self.row))
        first = changes.new_full((1, tokens_per_frame), torch.inf)
        return keep(features, top_positions(torch.cat([first, changes]).flatten(), kept))


def _changes(tokens: Tensor) -> Tensor:
    """(T - 1, L) float32, 1 - cosine between tokens at one position in consecutive frames.

    Computed as half the squared distance of the unit vectors, which is exactly 0 where nothing
    changed, so that ties between repeated frames are broken by position and not by rounding.
    """
    changes = tokens.new_empty(len(tokens) - 1, tokens.shape[1], dtype=torch.float32)
    # Frame by frame, because two frames fit the CPU's cache and a clip does not.
    before = F.normalize(tokens[0].float(), dim=-1)
    for frame in range(len(changes)):
        after = F.normalize(tokens[frame + 1].float(), dim=-1)
        changes[frame] = before.sub_(after).square_().sum(dim=-1) / 2
        before = after
    return changes
