"""VisionZip: keep the tokens with the most attention, merge the rest into a few contextual ones.

Paper: "VisionZip: Longer is Better but Not Necessary in Vision Language Models", Yang et al., CVPR
2025, Section 3, https://arxiv.org/abs/2412.04467. The release is made for images and an encoder
with a class token; video models without one use the adapter of the HoliTom repository, which is
followed here.

The adapter emits a frame's dominant tokens before its contextual ones; here a contextual token
stands at its target's position, and positions ascend. On models with a newline per row the adapter
also pairs dominant tokens with each other's positions and adds newlines for empty rows: a fault,
not reproduced.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from tango_core.compressors.base import Compressor
from tango_core.compressors.options import raise_if_outside
from tango_core.compressors.ordering import in_order
from tango_core.ops.merging import cluster_means
from tango_core.ops.saliency import rank_descending, take_ranked
from tango_core.types import CompressedVideo, VisualFeatures


@dataclass(frozen=True)
class VisionZip(Compressor):
    """Dominant tokens by received attention, plus evenly spaced ones into which the others merge.

    Every frame keeps ceil(retention * L) tokens: 20, 30 and 40 of 196 at 10, 15 and 20 %, as the
    adapter's scripts. Of these round(contextual_ratio * L) are contextual (10 of 196, the setting
    Tango's comparison states), but always at least one is dominant. A contextual token is its
    target plus the mean of the tokens whose keys are most similar to the target's: a sum of about
    twice the usual norm, as published.

    Attributes:
        retention: Share of the tokens to keep, in (0, 1].
        contextual_ratio: Contextual tokens as a share of all tokens of a frame, in [0, 1]; 0 for
            dominant ones only.
    """

    contextual_ratio: float = 0.05

    def __post_init__(self) -> None:
        """Check the options."""
        super().__post_init__()
        raise_if_outside(self, 0, 1, "contextual_ratio")

    @property
    def needs(self) -> frozenset[str]:
        """Received attention ranks tokens, keys say which are alike."""
        return frozenset({"attention", "keys"})

    def _compress(self, features: VisualFeatures) -> CompressedVideo:
        """All frames at once: every frame has the same numbers of tokens."""
        assert features.attention is not None
        assert features.keys is not None
        tokens, num_frames = features.tokens, len(features.tokens)
        dominant, contextual = self._budget(tokens.shape[1])
        ranked = rank_descending(features.attention.float())
        flat = tokens.flatten(0, 1)
        kept = [take_ranked(ranked, [dominant] * num_frames)]
        values = [flat.index_select(0, kept[0])]
        if contextual:
            rest = ranked[:, dominant:].sort(dim=1).values
            targets, merged = self._contextual(flat, features.keys, rest, contextual)
            kept.append(targets)
            values.append(merged.to(tokens.dtype))
        return in_order(kept, values, features)

    def _budget(self, tokens_per_frame: int) -> tuple[int, int]:
        """Dominant and contextual tokens of a frame of `tokens_per_frame` tokens."""
        total = min(tokens_per_frame, math.ceil(self.retention * tokens_per_frame - 1e-9))
        contextual = min(round(self.contextual_ratio * tokens_per_frame), total - 1)
        return total - contextual, contextual

    def _contextual(
        self, flat: Tensor, keys: Tensor, rest: Tensor, contextual: int
    ) -> tuple[Tensor, Tensor]:
        """Flat positions (T * C,) of the targets among (T, R) `rest`, and their (T * C, D) sums."""
        num_frames, tokens_per_frame, _ = keys.shape
        step = max(1, rest.shape[1] // contextual)
        is_target = torch.zeros(rest.shape[1], dtype=torch.bool)
        is_target[torch.arange(contextual) * step] = True
        targets = rest[:, is_target.nonzero()[:, 0].to(rest.device)]
        others = rest[:, (~is_target).nonzero()[:, 0].to(rest.device)]
        units = F.normalize(keys.float(), dim=-1)
        frames = torch.arange(num_frames, device=rest.device)[:, None]
        nearest = torch.bmm(units[frames, others], units[frames, targets].mT).argmax(dim=-1)
        starts = frames * tokens_per_frame
        means, _ = cluster_means(
            flat,
            (nearest + frames * contextual).flatten(),
            num_frames * contextual,
            sources=(others + starts).flatten(),
        )
        positions = (targets + starts).flatten()
        return positions, flat[positions].float() + means
