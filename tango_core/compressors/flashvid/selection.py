"""FlashVID's first step (ADTS): tokens that are far from each other, weighted by attention.

Every frame is for itself: of the weighted distances d[i, j] * w[j] the token with the largest gap
to what is chosen follows next. All frames take their steps together.
"""

from __future__ import annotations

import torch
from torch import Tensor

from tango_core.ops.saliency import rank_descending
from tango_core.ops.transfer import upload


def pick_diverse(distances: Tensor, weights: Tensor, counts: list[int]) -> Tensor:
    """Choose tokens of every frame by farthest points under weighted distances.

    The first is the one whose second-smallest weighted distance is largest, its own 0 counted;
    then always the largest minimum over what is chosen. Chosen tokens are never chosen again; the
    release does so with weights of 0 or less, and returns them twice.

    Args:
        distances: (T, L, L) cosine distances, symmetric, 0 on the diagonal, not negative.
        weights: (T, L) factors of the columns, of any sign.
        counts: Tokens of every frame, at most L.

    Returns:
        (T, L) bool.
    """
    num_frames, tokens_per_frame, _ = distances.shape
    steps = max(counts)
    chosen = torch.zeros(num_frames, tokens_per_frame, dtype=torch.bool, device=weights.device)
    if steps == 0:
        return chosen
    order = torch.empty(num_frames, steps, dtype=torch.int64, device=weights.device)
    taken = torch.zeros_like(weights)  # -inf where a token is chosen
    gaps = _second_smallest(distances, weights)
    nearest = torch.full_like(weights, torch.inf)
    for step in range(steps):
        best = (gaps + taken).argmax(dim=1, keepdim=True)
        order[:, step : step + 1] = best
        taken.scatter_(1, best, -torch.inf)
        rows = distances.gather(1, best[..., None].expand(-1, -1, tokens_per_frame))[:, 0]
        gaps = torch.minimum(nearest, rows.mul_(weights), out=nearest)
    wanted = upload(counts, chosen.device)[:, None]
    return chosen.scatter_(1, order, torch.arange(steps, device=chosen.device) < wanted)


def pick_attended(attention: Tensor, counts: list[int]) -> Tensor:
    """(T, L) bool, the `counts` most attended tokens of every frame; ties to the lowest."""
    ranked = rank_descending(attention.float())
    limits = upload(counts, ranked.device)[:, None]
    wanted = torch.arange(attention.shape[1], device=ranked.device) < limits
    return torch.zeros_like(ranked, dtype=torch.bool).scatter_(1, ranked, wanted)


def _second_smallest(distances: Tensor, weights: Tensor) -> Tensor:
    """(T, L) second-smallest entries of the columns of the weighted distances."""
    tokens_per_frame = distances.shape[1]
    if tokens_per_frame == 1:
        return torch.zeros_like(weights)
    # A positive weight leaves the order of a column, whose smallest entry is the diagonal's 0.
    others = distances + torch.eye(tokens_per_frame, device=distances.device) * 1e9
    second = others.amin(dim=1) * weights
    # A negative one turns it around. Only a CPU is asked first whether there is one.
    if weights.device.type != "cpu" or bool((weights < 0).any()):
        largest = distances.topk(2, dim=1).values[:, 1]
        second = torch.where(weights < 0, largest * weights, second)
    return second
