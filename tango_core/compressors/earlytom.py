"""EarlyTom: merge frames inside the vision tower, then keep the most attended tokens of each.

Paper: https://arxiv.org/abs/2605.30010 (CVPR 2026). Settings and arithmetic are those of the
release (viridisGreen/EarlyTom@b909322); FAITHFULNESS.md lists the differences.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from tango_core.compressors.base import Combination, keep
from tango_core.compressors.hybrid import Hybrid
from tango_core.ops.saliency import rank_descending
from tango_core.ops.transfer import upload
from tango_core.types import VisualFeatures


@dataclass(frozen=True)
class EarlyTom(Hybrid):
    """The step before the language model; the tower merges frames (`model.merge_layers`).

    The first and the last frame of every group of frames keep the tokens that receive the most
    attention. Every frame between them is cut into windows of equal length, in reading order, and
    keeps the most attended token of each.

    Attributes:
        retention: Share in (0, 1] of the tokens of all frames, before frames were merged. What
            merging removed counts, so that fewer tokens are kept only if merging left fewer. With
            `inner`, its average over the layers.
        inner: In-LLM step that follows, as published `{"name": "holitom-merge", "layer": 18,
            "retention": 0.5}`; see HoliTom.
    """

    needs = frozenset({"merged_attention"})

    inner: Mapping[str, Any] | None = field(default=None, hash=False)

    def _plan(self, features: VisualFeatures) -> Combination:
        attention = features.signal("merged_attention")
        num_frames, length = features.tokens.shape[:2]
        share = min(1.0, self.outer_retention * _merged_by(features))
        most, windows = math.ceil(length * share), max(1, round(length * share))
        ranked = rank_descending(attention)[:, :most].sort(dim=1).values
        ends = _ends_of_groups(features)
        kept = [
            ranked[frame] if frame in ends else _best_of_windows(attention[frame], windows)
            for frame in range(num_frames)
        ]
        sizes = torch.tensor([len(positions) for positions in kept])
        offsets = (torch.arange(num_frames) * length).repeat_interleave(sizes)
        positions = torch.cat(kept)
        return keep(features, positions + upload(offsets, positions.device))


def _merged_by(features: VisualFeatures) -> float:
    """Frames of the clip per frame that merging left."""
    if features.source_timestamps is None:
        return 1.0
    return len(features.source_timestamps) / len(features.tokens)


def _ends_of_groups(features: VisualFeatures) -> set[int]:
    """First and last frame of every group; without merging, all frames."""
    if features.frame_map is None:
        return set(range(len(features.tokens)))
    groups = features.frame_map[:, 1].tolist()
    pairs = zip([None, *groups], groups, [*groups[1:], None], strict=False)
    return {index for index, (left, own, right) in enumerate(pairs) if left != own or own != right}


def _best_of_windows(scores: Tensor, number: int) -> Tensor:
    """(number,) ascending positions of the highest score in each of `number` windows.

    The first windows are one token longer where the length is no multiple of the number.
    """
    sizes = [len(scores) // number + (index < len(scores) % number) for index in range(number)]
    starts = torch.tensor([0, *sizes[:-1]], device=scores.device).cumsum(0)
    windows = torch.split(scores, sizes)
    return starts + torch.stack([window.argmax() for window in windows])
