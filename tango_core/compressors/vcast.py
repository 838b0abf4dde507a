"""V-CAST: frame budgets by the curvature of frame features; per frame the most unusual tokens.

Paper: "V-CAST", arXiv 2603.27650; release xinyouu/V-CAST at c235ef3, for Qwen3-VL.

The release gives all tokens that remain after rounding down to the frame with the largest fraction
(`legacy_remainder`); here the largest fractions get one each. It skips clips of one frame, treats
clips of two frames separately from the formula, and computes in the model's dtype; here the formula
holds for all lengths, in float32. If frames hardly differ, the curvature is noise: a static scene
recorded by a noisy sensor gets more tokens than a moving one.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, Any, ClassVar, Literal

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from tango_core.combination import Combination
from tango_core.compressors.base import Compressor, keep
from tango_core.compressors.options import Range
from tango_core.ops.blocks import row_blocks
from tango_core.ops.budgets import apportion
from tango_core.ops.finite import read_checked
from tango_core.ops.saliency import rank_descending, take_ranked
from tango_core.types import VisualFeatures

LEAST_LENGTH = 1e-6
# Outside of this range float32 overflows.
Temperature = Annotated[float, Range("from 1e-6 to 1e6", lambda value: 1e-6 <= value <= 1e6)]


@dataclass(frozen=True)
class VCast(Compressor):
    """Budgets by the curvature of the frame means, then tokens far from the mean or of large norm.

    Keeps round(retention * T * L) tokens. Tokens are not changed.

    Attributes:
        retention: Share of the tokens to keep, in (0, 1].
        temperature: Temperature of the softmax over frames, from 1e-6 to 1e6; larger is more even.
        legacy_remainder: Give the remainder of rounding to one frame until it is full, as released.
        budget: `"official"` keeps at least one token of every frame, so more than requested if the
            clip has more frames than that; `"exact"` never does.
    """

    checks_in_plan: ClassVar[bool] = True
    added_options: ClassVar[Mapping[str, Any]] = {"budget": "official"}

    temperature: Temperature = 0.7
    legacy_remainder: bool = False
    budget: Literal["official", "exact"] = "official"

    def _plan(self, features: VisualFeatures) -> Combination:
        """Score, set the frames' budgets, keep the highest scores of every frame."""
        scores, means, norms = _scores(features.tokens)
        tokens_per_frame = scores.shape[1]
        weights = torch.softmax(_curvature(means) / self.temperature, dim=0)
        (shares,) = read_checked(features, self.needs, weights, squares=norms)
        counts = self._counts(shares.astype(np.float64), tokens_per_frame)
        kept = take_ranked(rank_descending(scores), counts)
        return keep(features, kept.sort().values)

    def _counts(self, weights: NDArray[np.float64], tokens_per_frame: int) -> list[int]:
        """Token counts of the frames, from weights that add up to 1."""
        num_frames = len(weights)
        size = num_frames * tokens_per_frame
        total = min(size, max(1, round(size * self.retention)))
        if total < num_frames:
            if self.budget == "official":
                return [1] * num_frames
            capacity = np.ones(num_frames, dtype=np.int64)
            return list(apportion(total, weights * total, capacity).tolist())
        raw = weights * (total - num_frames)
        counts = 1 + np.minimum(np.floor(raw), tokens_per_frame - 1).astype(np.int64)
        order = np.argsort(-(raw - np.floor(raw)), kind="stable")
        while (left := total - int(counts.sum())) > 0:
            room = tokens_per_frame - counts
            open_frames = order[room[order] > 0]
            if self.legacy_remainder:
                first = open_frames[0]
                counts[first] += min(left, int(room[first]))
            else:
                counts[open_frames[:left]] += 1
        return list(counts.tolist())


def _scores(tokens: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """(T, L) scores, the (T, D) float32 unit vectors of the frames' means, and (T, L) norms."""
    num_frames, tokens_per_frame, dim = tokens.shape
    norms = torch.empty(num_frames, tokens_per_frame, device=tokens.device)
    cosines, means = torch.empty_like(norms), tokens.new_empty(num_frames, dim).float()
    for frames in row_blocks(num_frames, tokens_per_frame * dim, tokens.device):
        block = tokens[frames].float()
        norms[frames] = torch.linalg.vector_norm(block, dim=-1)
        mean = block.mean(dim=1)
        mean /= torch.linalg.vector_norm(mean, dim=-1, keepdim=True).clamp(min=LEAST_LENGTH)
        inverse = norms[frames].clamp(min=LEAST_LENGTH).reciprocal()
        cosines[frames] = torch.bmm(block, mean[..., None])[..., 0] * inverse
        means[frames] = mean
    least, most = norms.aminmax(dim=1, keepdim=True)
    return (1 - cosines) + (norms - least) / (most - least + LEAST_LENGTH), means, norms


def _curvature(means: Tensor) -> Tensor:
    """(T,) 1 - cosine of the differences to the previous and the next frame; 1 at both ends."""
    bends = torch.ones(len(means), device=means.device)
    if len(means) > 2:
        steps = means.diff(dim=0)
        lengths = torch.linalg.vector_norm(steps, dim=-1).clamp(min=LEAST_LENGTH)
        products = torch.linalg.vecdot(steps[:-1], steps[1:])
        bends[1:-1] = 1 - products / lengths[:-1] / lengths[1:]
    return bends
