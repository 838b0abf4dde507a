"""Methods that act in several layers: PyramidDrop, SparseVLM, FrameFusion."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from references.clusters import density_peaks, means_of, nearest_center
from references.inside import last, last_row, merged_in, with_text
from tango_core.compressors.base import LayerContext


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
