"""VidCom2: keep the tokens least like their clip and their frame, more of them in unusual frames.

Paper: "Video Compression Commander: Plug-and-Play Inference Acceleration for Video Large Language
Models", Liu et al., EMNLP 2025, https://arxiv.org/abs/2505.14454: frame compression adjustment and
adaptive token compression. Constants that the paper does not print are those of the release
(xuyang-liu16/VidCom2): half of the channels, the five kernel widths, the temperature.

The release computes scores in the model's dtype, whose rounding a temperature of 0.01 amplifies by
100; here they are float32. Its LLaVA-Video code puts all newlines of a frame at the frame's
end; here the language model places them.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, Literal

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from tango_core.combination import Combination
from tango_core.compressors.base import (
    Compressor,
    ScoredRow,
    keep,
    num_kept,
    scored_row,
)
from tango_core.ops.blocks import row_blocks
from tango_core.ops.budgets import apportion, fill, floor_share
from tango_core.ops.finite import read_checked, refuse_norms
from tango_core.ops.saliency import positions_of
from tango_core.ops.transfer import upload
from tango_core.types import VisualFeatures

KERNEL_VARIANCES = (1 / 8, 1 / 4, 1 / 2, 1.0, 2.0)
TEMPERATURE = 0.01


@dataclass(frozen=True)
class VidCom2(Compressor):
    """Give a frame a budget by its distance from the clip's centre; keep its least typical tokens.

    A frame keeps round(scale * L) tokens (half to even), at least 1. The scales average to
    `retention`, so the total differs from round(retention * T * L) by rounding, unless an unusual
    frame would get more tokens than it has: the excess is lost, as published. Tokens are
    not changed.

    Attributes:
        retention: Share of the tokens to keep, in (0, 1].
        budget: `"official"` rounds in every frame as described above; `"exact"` keeps
            round(retention * T * L) tokens by largest remainder; the excess of a frame goes to
            others. `"vllm"` rounds as `"official"`, then drops the most typical or adds the least
            typical tokens of the whole clip until max(T, int(retention * T * L)) are kept, as vLLM
            does.
        row: Values that tokens are compared by: `"main"`, or `"deepstack"`, the tokens and their
            DeepStack rows together, as in vLLM for Qwen3-VL.
    """

    checks_in_plan: ClassVar[bool] = True
    added_options: ClassVar[Mapping[str, Any]] = {"budget": "official", "row": "main"}

    budget: Literal["official", "exact", "vllm"] = "official"
    row: ScoredRow = "main"

    def _plan(self, features: VisualFeatures) -> Combination:
        """Score, set the frames' budgets, keep the lowest similarities of every frame."""
        clip_similarity, frame_similarity = self._similarities(scored_row(features, self.row))
        tokens_per_frame = clip_similarity.shape[1]
        (scales,) = read_checked(features, self.needs, self._scales(clip_similarity))
        if not np.isfinite(scales).all():
            refuse_norms(features, self.needs)
        counts = self._counts(scales, tokens_per_frame)
        similarity = clip_similarity + frame_similarity
        order = torch.sort(similarity, dim=1, stable=True).indices
        limits = upload(counts, order.device)[:, None]
        below = torch.arange(tokens_per_frame, device=order.device) < limits
        is_kept = torch.zeros_like(below).scatter_(1, order, below).flatten()
        number = int(counts.sum())
        if self.budget == "vllm":
            total = max(len(counts), floor_share(similarity.numel(), self.retention))
            is_kept, number = _adjusted(is_kept, similarity.flatten(), total - number), total
        return keep(features, positions_of(is_kept, number))

    def _counts(self, scales: NDArray[np.float32], tokens_per_frame: int) -> NDArray[np.int64]:
        """(T,) token counts of the frames, from the share that each keeps."""
        if self.budget != "exact":
            rounded = (scales * np.float32(tokens_per_frame)).round()
            return rounded.clip(1, tokens_per_frame).astype(np.int64)
        capacity = np.full(len(scales), tokens_per_frame, dtype=np.int64)
        total = num_kept(int(capacity.sum()), self.retention)
        quotas = fill(float(total), scales.astype(np.float64), capacity.astype(np.float64))
        return apportion(total, quotas, capacity)

    def _similarities(self, tokens: Tensor) -> tuple[Tensor, Tensor]:
        """(T, L) similarities to the clip's and to the frame's mean, over low-variance channels."""
        num_frames, tokens_per_frame, dim = tokens.shape
        steady = _steady_channels(tokens.flatten(0, 1))
        inverses = torch.empty(num_frames, tokens_per_frame, device=tokens.device)
        squares, to_frame = torch.empty_like(inverses), torch.empty_like(inverses)
        to_clip = torch.empty_like(inverses)
        frame_means = torch.empty(num_frames, dim, device=tokens.device)
        blocks = row_blocks(num_frames, tokens_per_frame * dim, tokens.device)
        scratch = torch.empty(blocks[0].stop, tokens_per_frame, dim, device=tokens.device)
        # Norms and means use a channel mask, and unit vectors are never materialised:
        # |u - c|^2 = |u|^2 - 2 u.c + |c|^2, and u.c = x.c / |x|.
        for frames in blocks:
            block = tokens[frames].float()
            lengths = torch.mul(block, block, out=scratch[: len(block)]) @ steady
            inverse = lengths.sqrt().clamp_(min=1e-12).reciprocal_()
            means = torch.bmm(inverse[:, None], block)[:, 0] * (steady / tokens_per_frame)
            to_frame[frames] = torch.bmm(block, means[..., None])[..., 0] * inverse
            frame_means[frames], inverses[frames] = means, inverse
            squares[frames] = lengths * inverse**2
        clip_mean = frame_means.mean(dim=0)
        for frames in blocks:
            to_clip[frames] = (tokens[frames].float() @ clip_mean) * inverses[frames]
        frame_squares = frame_means.square().sum(dim=1, keepdim=True)
        return (
            _kernel(squares - 2 * to_clip + clip_mean.square().sum()),
            _kernel(squares - 2 * to_frame + frame_squares),
        )

    def _scales(self, clip_similarity: Tensor) -> Tensor:
        """(T,) share of tokens that every frame keeps; the mean is `retention` unless one is 1."""
        distinctness = -clip_similarity.mean(dim=1)
        weights = torch.softmax((distinctness - distinctness.max()) / TEMPERATURE, dim=0)
        return (self.retention * (1 + weights - weights.mean())).clamp(max=1)


def _adjusted(is_kept: Tensor, similarity: Tensor, missing: int) -> Tensor:
    """Add the `missing` tokens of lowest similarity, or drop `-missing` of the highest."""
    scores = similarity.masked_fill(is_kept == (missing > 0), np.inf if missing > 0 else -np.inf)
    order = torch.sort(scores, descending=missing < 0, stable=True).indices
    return is_kept.index_fill(0, order[: abs(missing)], missing > 0)


def _steady_channels(flat: Tensor) -> Tensor:
    """(D,) float32, 1 for the half of the channels that vary least over (S, D) tokens, else 0."""
    num_tokens, dim = flat.shape
    means, counts = [], []
    spread = torch.zeros(dim, device=flat.device)
    blocks = row_blocks(num_tokens, dim, flat.device)
    scratch = torch.empty(blocks[0].stop, dim, device=flat.device)
    for rows in blocks:
        block = flat[rows].float()
        means.append(block.mean(dim=0))
        counts.append(len(block))
        spread += torch.sub(block, means[-1], out=scratch[: len(block)]).square_().sum(dim=0)
    # Total variance: variance within blocks plus variance of the blocks' means.
    weights = torch.tensor(counts, dtype=torch.float32)[:, None].to(flat.device)
    centers = torch.stack(means)
    center = (weights * centers).sum(dim=0) / num_tokens
    spread += (weights * (centers - center).square()).sum(dim=0)
    steadiest = torch.sort(spread, stable=True).indices[: max(1, dim // 2)]
    return torch.zeros_like(spread).index_fill_(0, steadiest, 1.0)


def _kernel(squares: Tensor) -> Tensor:
    """Sum of Gaussian kernels of squared distances."""
    squares = squares.clamp(min=0)
    return torch.stack([torch.exp(-squares / (2 * width)) for width in KERNEL_VARIANCES]).sum(dim=0)
