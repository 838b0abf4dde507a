"""Methods that prune once inside the language model: FastV, DART, and the two that merge."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from tango_core.compressors.base import LayerContext


def last_row(attention: Tensor, context: LayerContext) -> Tensor:
    """(n,) attention of the last token to the visual ones, averaged over heads."""
    return attention[:, 0, context.visual].mean(dim=0)


def last(context: LayerContext) -> Tensor:
    """(1,) position of the last token."""
    return torch.tensor([len(context.hidden) - 1], device=context.hidden.device)


def with_text(context: LayerContext, kept: Tensor) -> Tensor:
    """Positions of ascending visual tokens and of all text."""
    every = torch.arange(len(context.hidden), device=kept.device)
    start = int(context.visual[0])
    return torch.cat([every[:start], kept + start, every[context.after :]])


def fastv(context: LayerContext, share: float) -> tuple[Tensor, Tensor]:
    """The top of the last row of attention."""
    scores = last_row(context.attention(last(context)), context)
    count = max(1, round(len(scores) * share))
    keep = with_text(context, scores.topk(count).indices.sort().values)
    return keep, context.hidden[keep]


def dart(context: LayerContext, share: float) -> tuple[Tensor, Tensor]:
    """For four visual and four text pivots in turn, the tokens least like them."""
    visual = context.visual
    states = context.norm(context.hidden).float()
    units = F.normalize(states, dim=-1)
    norms = context.keys().float().norm(p=1, dim=-1)
    own = norms[visual].topk(4).indices
    text = norms[context.after :].topk(4).indices + context.after
    per_pivot = int(context.num_left * share / 8)
    taken = torch.zeros(context.num_left, dtype=torch.bool, device=own.device)
    taken[own] = True
    for pivot in torch.cat([visual[own], text]).tolist():
        similarity = (units[visual] @ units[pivot]).masked_fill(taken, torch.inf)
        taken[similarity.topk(per_pivot, largest=False).indices] = True
    keep = with_text(context, taken.nonzero()[:, 0])
    return keep, context.hidden[keep]


def split(context: LayerContext, share: float) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
    """Kept and dropped visual tokens, their states, and the most similar kept one of each."""
    scores = last_row(context.attention(last(context)), context)
    count = max(1, round(len(scores) * share))
    stays = torch.zeros(len(scores), dtype=torch.bool, device=scores.device)
    stays[scores.topk(count).indices] = True
    kept, dropped = stays.nonzero()[:, 0], (~stays).nonzero()[:, 0]
    states = context.hidden[context.visual].float()
    units = F.normalize(states, dim=-1)
    nearest = (units[dropped] @ units[kept].mT).argmax(dim=-1)
    return kept, dropped, states[kept], states[dropped], nearest


def merged_in(context: LayerContext, kept: Tensor, merged: Tensor) -> tuple[Tensor, Tensor]:
    """The shortened sequence with new states for its visual tokens."""
    keep = with_text(context, kept)
    hidden = context.hidden[keep]
    start = int(context.visual[0])
    hidden[start : start + len(kept)] = merged.to(hidden.dtype)
    return keep, hidden


def fastv_merge(context: LayerContext, share: float) -> tuple[Tensor, Tensor]:
    """FastV; what goes is pooled into the most similar kept token, which weighs 0.6 of itself."""
    kept, _, own, others, nearest = split(context, share)
    counts = torch.bincount(nearest, minlength=len(kept))[:, None]
    pooled = own.index_add(0, nearest, others) / (1 + counts)
    return merged_in(context, kept, torch.where(counts > 0, 0.6 * own + 0.4 * pooled, own))


def holitom_merge(context: LayerContext, share: float) -> tuple[Tensor, Tensor]:
    """FastV; what goes is averaged into the most similar kept token, one after the other."""
    kept, _, own, others, nearest = split(context, share)
    merged = own.clone()
    for state, target in zip(others, nearest.tolist(), strict=True):
        merged[target] = (merged[target] + state) / 2
    return merged_in(context, kept, merged)
