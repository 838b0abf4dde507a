"""Saliency scores, their pooling to the model's grid, and the ranking rule of all methods.

Every function computes in float32 for any input dtype: scores that differ by less than a
half-precision step would tie, and ties are broken by position, not by content.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Literal

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from tango_core.ops.transfer import upload_together

Pooling = Literal["bilinear", "average"]


def rank_descending(scores: Tensor) -> Tensor:
    """Order positions by descending score; of equal scores the lowest position comes first.

    Args:
        scores: (..., N).

    Returns:
        (..., N) int64.
    """
    return torch.sort(scores, dim=-1, descending=True, stable=True).indices


def top_positions(scores: Tensor, count: int) -> Tensor:
    """Positions of the highest scores; of equal scores the lowest positions are chosen.

    Gives the same set as the first `count` of `rank_descending`, without a full sort.

    Args:
        scores: (N,) float32 without NaN.
        count: In [0, N].

    Returns:
        (count,) int64, ascending.
    """
    # Float bit patterns sort as integers once those of negative floats are inverted; adding 0 turns
    # -0 into 0. The position in the low bits makes all keys distinct.
    bits = (scores.float() + 0.0).view(torch.int32).long()
    ordered = torch.where(bits < 0, bits ^ 0x7FFFFFFF, bits)
    keys = ordered * 2**32 - torch.arange(len(scores), device=scores.device)
    return keys.topk(count, sorted=False).indices.sort().values


def positions_of(chosen: Tensor, count: int) -> Tensor:
    """Positions of the true entries, whose number the host already knows.

    `nonzero` would wait for the device to count it.

    Args:
        chosen: (N,) bool mask.
        count: Number of true entries.

    Returns:
        (count,) int64, ascending.
    """
    return (~chosen).sort(stable=True).indices[:count]


def take_ranked(ranked: Tensor, counts: Sequence[int]) -> Tensor:
    """Flat positions of the first `counts[t]` entries of every row of a ranking.

    Args:
        ranked: (T, N) int64, see `rank_descending`.
        counts: T numbers in [0, N] on the host, so that no device synchronisation is needed.

    Returns:
        (sum of counts,) int64 positions t * N + n, row after row, by rank inside a row.
    """
    if len(set(counts)) == 1:
        rows = torch.arange(len(counts), device=ranked.device)[:, None]
        return (ranked[:, : counts[0]] + rows * ranked.shape[1]).flatten()
    places = [np.arange(count) for count in counts]
    numbers = np.repeat(np.arange(len(counts)), counts)
    rows, columns = upload_together([numbers, np.concatenate(places)], ranked.device)
    return ranked[rows, columns] + rows * ranked.shape[1]


def pool_grid(maps: Tensor, grid: tuple[int, int], how: Pooling, step: int = 2) -> Tensor:
    """Pool token maps from the vision tower's grid to the language model's.

    Features and scores of one clip must go through the same operator, or a score would describe
    another position.

    Args:
        maps: (T, H * W) scores or (T, H * W, D) features, any float dtype.
        grid: (H, W) of the tower, e.g. (27, 27).
        how: `"bilinear"` to (ceil(H / step), ceil(W / step)) with half-pixel centres and two taps
            per axis (LLaVA-OneVision: 27 to 14), or `"average"` over step x step positions,
            dropping rows and columns of incomplete squares (LLaVA-Video: 27 to 13).
        step: Positions of the tower per token and axis.

    Returns:
        (T, H' * W') or (T, H' * W', D) in the input's dtype.

    Raises:
        ValueError: If the maps do not have H * W tokens, or the grid is too small to average.
    """
    height, width = grid
    if maps.ndim not in (2, 3) or maps.shape[1] != height * width:
        raise ValueError(
            f"maps must be (T, {height * width}) or (T, {height * width}, D), "
            f"got {tuple(maps.shape)}"
        )
    num_frames = maps.shape[0]
    images = maps.reshape(num_frames, height, width, -1).permute(0, 3, 1, 2)
    size = pooled_grid(grid, how, step)
    if how == "bilinear":
        pooled = F.interpolate(images, size=size, mode="bilinear", align_corners=False)
    else:
        pooled = F.avg_pool2d(images, step)
    flat = pooled.flatten(2).transpose(1, 2)
    return flat.reshape(num_frames, -1, *maps.shape[2:])


def pooled_grid(grid: tuple[int, int], how: Pooling, step: int = 2) -> tuple[int, int]:
    """(H', W') grid that `pool_grid` returns for an (H, W) grid.

    Raises:
        ValueError: If the grid is too small to average, or the pooling is unknown.
    """
    height, width = grid
    if how == "bilinear":
        return math.ceil(height / step), math.ceil(width / step)
    if how != "average":
        raise ValueError(f"pooling must be 'bilinear' or 'average', got {how!r}")
    if min(grid) < step:
        raise ValueError(
            f"average pooling needs a grid of at least {step} x {step}, got {height} x {width}"
        )
    return height // step, width // step


def pooling_head_attention(
    hidden: Tensor,
    probe: Tensor,
    in_proj_weight: Tensor,
    in_proj_bias: Tensor,
    num_heads: int,
    norm_weight: Tensor,
    norm_bias: Tensor,
    norm_eps: float = 1e-6,
) -> Tensor:
    """Score tokens by SigLIP's attention pooling head, straight from its weights ("p-attn").

    The score is the attention of the head's probe, averaged over heads.

    LLaVA runs the tower without its last block and hands that block's input to the head: `hidden`
    is taken before the final normalisation, which is applied here.

    Args:
        hidden: (T, N, C) output of the last block that is run.
        probe: (C,) learned query, any shape with C elements.
        in_proj_weight: (3 C, C) packed query, key and value projection of the head's attention.
        in_proj_bias: (3 C,).
        num_heads: Heads of the head's attention.
        norm_weight: (C,) of the tower's final LayerNorm.
        norm_bias: (C,).
        norm_eps: Epsilon of that LayerNorm.

    Returns:
        (T, N) float32 on the tower's grid; every row sums to 1. Pool it with `pool_grid`.
    """
    width = hidden.shape[-1]
    normed = F.layer_norm(
        hidden.float(), (width,), norm_weight.float(), norm_bias.float(), norm_eps
    )
    weight, bias = in_proj_weight.float(), in_proj_bias.float()
    query = F.linear(probe.float().reshape(width), weight[:width], bias[:width])
    keys = F.linear(normed, weight[width : 2 * width], bias[width : 2 * width])
    query, keys = (part.reshape(*part.shape[:-1], num_heads, -1) for part in (query, keys))
    logits = torch.einsum("hd,tnhd->thn", query, keys) / math.sqrt(query.shape[-1])
    return logits.softmax(dim=-1).mean(dim=1)


def mean_query_attention(queries: Tensor, keys: Tensor, num_frames: int, merge: int = 4) -> Tensor:
    """Attention of a frame's mean query to its merged tokens ("p-attn", Qwen2.5-VL).

    That tower has no probe, so the mean over a temporal patch's queries replaces it; keys are
    averaged over the patches that become one token. The released code casts the softmax to bfloat16
    before the mean over heads, which leaves about twenty distinct values for 36 tokens; here it
    stays in float32.

    Args:
        queries: (T * P, heads, d) of the last block after its rotary embedding, in the tower's
            window order.
        keys: (T * P, heads, d), same order.
        num_frames: T temporal patches.
        merge: Consecutive patches that become one token.

    Returns:
        (T, P / merge) float32, still in window order; every row sums to 1.

    Raises:
        ValueError: If the patches do not divide into T frames of whole tokens.
    """
    num_patches, num_heads, head_dim = queries.shape
    if num_patches % (num_frames * merge):
        raise ValueError(
            f"{num_patches} patches do not divide into {num_frames} frames "
            f"of whole {merge}-patch tokens"
        )
    mean_query = queries.float().reshape(num_frames, -1, num_heads, head_dim).mean(dim=1)
    mean_keys = keys.float().reshape(num_frames, -1, merge, num_heads, head_dim).mean(dim=2)
    logits = torch.einsum("thd,tnhd->thn", mean_query, mean_keys) / math.sqrt(head_dim)
    return logits.softmax(dim=-1).mean(dim=1)
