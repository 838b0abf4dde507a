"""VidCom2: keep the tokens least like their clip and their frame, more of them in unusual frames.

Paper: "Video Compression Commander: Plug-and-Play Inference Acceleration for Video Large Language
Models", Liu et al., EMNLP 2025, https://arxiv.org/abs/2505.14454: frame compression adjustment and
adaptive token compression. Constants that the paper does not print are those of the release
(xuyang-liu16/VidCom2): half of the channels, the five kernel widths, the temperature.

The release computes scores in the model's dtype, whose steps a temperature of 0.01 magnifies a
hundredfold; here they are float32. Where its LLaVA-Video code puts newlines (all of a frame's at
the frame's end) is the language model's business.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from tango_core.compressors.base import Compressor, select
from tango_core.types import CompressedVideo, VisualFeatures

KERNEL_VARIANCES = (1 / 8, 1 / 4, 1 / 2, 1.0, 2.0)
TEMPERATURE = 0.01


@dataclass(frozen=True)
class VidCom2(Compressor):
    """Give a frame a budget by its distance from the clip's centre; keep its least typical tokens.

    A frame keeps round(scale * L) tokens (half to even), at least 1. The scales average to
    `retention`, so the total differs from round(retention * T * L) by rounding, unless an unusual
    frame would get more tokens than it has: what it cannot use is lost, as published. Tokens are
    not changed.

    Attributes:
        retention: Share of the tokens to keep, in (0, 1].
    """

    def _compress(self, features: VisualFeatures) -> CompressedVideo:
        """Score, set the frames' budgets, keep the lowest similarities of every frame."""
        clip_similarity, frame_similarity = self._similarities(features.tokens)
        num_cells = clip_similarity.shape[1]
        counts = (self._scales(clip_similarity) * num_cells).round().clamp(1, num_cells)
        order = torch.sort(clip_similarity + frame_similarity, dim=1, stable=True).indices
        below = torch.arange(num_cells, device=order.device) < counts[:, None]
        keep = torch.zeros_like(below).scatter_(1, order, below)
        return select(features, keep.flatten().nonzero()[:, 0])

    def _similarities(self, tokens: Tensor) -> tuple[Tensor, Tensor]:
        """(T, L) similarities to the clip's and to the frame's mean, over the steadier channels."""
        flat = tokens.flatten(0, 1).float()
        spread = (flat - flat.mean(dim=0)).square_().sum(dim=0)
        steadiest = torch.sort(spread, stable=True).indices[: max(1, flat.shape[1] // 2)]
        units = F.normalize(flat.index_select(1, steadiest.sort().values), dim=1)
        units = units.view(*tokens.shape[:2], -1)
        frame_means = units.mean(dim=1, keepdim=True)
        return _kernel(units, units.mean(dim=(0, 1))), _kernel(units, frame_means)

    def _scales(self, clip_similarity: Tensor) -> Tensor:
        """(T,) share every frame keeps of its tokens; their mean is `retention` unless one is 1."""
        distinctness = -clip_similarity.mean(dim=1)
        weights = torch.softmax((distinctness - distinctness.max()) / TEMPERATURE, dim=0)
        return (self.retention * (1 + weights - weights.mean())).clamp(max=1)


def _kernel(points: Tensor, center: Tensor) -> Tensor:
    """Sum of Gaussian kernels of the distances to `center`, over the last dimension."""
    squares = (points - center).square_().sum(dim=-1)
    return torch.stack([torch.exp(-squares / (2 * width)) for width in KERNEL_VARIANCES]).sum(dim=0)
