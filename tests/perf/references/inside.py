"""Methods that prune inside the language model, once or in several layers."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from references.merging import density_peaks, means_of, nearest_center
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


def pyramiddrop(context: LayerContext, share: float) -> tuple[Tensor, Tensor]:
    """The top of the coming layer's last row of attention."""
    scores = last_row(context.attention_ahead(last(context)), context)
    count = max(1, int(context.num_visual * share))
    keep = with_text(context, scores.topk(count).indices.sort().values)
    return keep, context.hidden[keep]


def sparsevlm(context: LayerContext, share: float) -> tuple[Tensor, Tensor]:
    """At layer 0 text chooses its raters; later they rank, and a part of what goes is clustered."""
    visual = context.visual
    states = context.hidden.float()
    if context.layer == 0:
        relevance = (states[visual] @ states[context.after :].mT).softmax(dim=-1).mean(dim=0)
        context.scratch["raters"] = (relevance > relevance.mean()).nonzero()[:, 0]
        every = torch.arange(len(states), device=states.device)
        return every, context.hidden[every]
    scores = context.attention(context.scratch["raters"] + context.after)[..., visual].mean((0, 1))
    order = scores.sort(descending=True, stable=True).indices
    total = round(context.num_visual * share)
    count = total
    while count + (int((len(order) - count) * 0.3) + 1) // 10 + 1 > total:
        count -= 1
    pool = order[count : count + int((len(order) - count) * 0.3) + 1].sort().values
    points = states[visual][pool]
    clusters = total - count
    centers, distances = density_peaks(points, clusters, clusters)
    means, _ = means_of(points, nearest_center(distances, centers), clusters)
    stays = order[:count]
    kept = torch.cat([stays, pool[centers]]).sort()
    merged = torch.cat([states[visual][stays], means])[kept.indices]
    return merged_in(context, kept.values, merged)


def framefusion(context: LayerContext, retention: float) -> tuple[Tensor, Tensor]:
    """Layer 0 of a clip without newlines: runs of like tokens at a place become their mean."""
    num_frames, height, width = context.grid
    states = context.hidden[context.visual].float()
    frames = states.view(num_frames, height * width, -1)
    similarity = torch.full(frames.shape[:2], -2.0, device=states.device)
    similarity[1:] = F.cosine_similarity(frames[1:], frames[:-1], dim=-1)
    merges = similarity >= 0.6
    too_many = len(states) - len(states) * retention
    if int(merges.sum()) >= too_many:
        merges = torch.zeros_like(merges)
        merges.view(-1)[similarity.flatten().topk(int(too_many)).indices] = True
    run = torch.arange(len(states), device=states.device).view_as(merges).clone()
    for frame in range(1, num_frames):
        run[frame] = torch.where(merges[frame], run[frame - 1], run[frame])
    kept = (~merges).flatten().nonzero()[:, 0]
    means, _ = means_of(states, run.flatten(), len(states))
    return merged_in(context, kept, means[kept])
