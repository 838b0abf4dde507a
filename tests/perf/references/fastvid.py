"""FastVID as released for LLaVA-OneVision, segment by segment and anchor frame by anchor frame."""

from __future__ import annotations

from itertools import pairwise

import torch
import torch.nn.functional as F
from torch import Tensor

from references.clusters import density_peaks, means_of
from tango_core.types import VisualFeatures

NUM_SEGMENTS, TAU, CONTEXT, STRIDE, BETA, NEIGHBORS = 8, 0.9, 0.4, 4, 0.6, 4


def compress(features: VisualFeatures, retention: float) -> tuple[Tensor, Tensor]:
    """Salient tokens of every frame, and anchors that absorb the rest of their segment."""
    tokens = features.tokens.float()
    num_frames, num_cells, _ = tokens.shape
    flat = tokens.flatten(0, 1)
    total = int(num_cells * retention)
    context = int(total * CONTEXT)
    salient = features.saliency.topk(total - context, dim=1).indices
    is_rest = torch.ones(num_frames, num_cells, dtype=torch.bool, device=tokens.device)
    is_rest.scatter_(1, salient, False)
    starts = torch.arange(num_frames, device=tokens.device)[:, None] * num_cells
    kept = [(salient + starts).flatten()]
    values = [flat[kept[0]]]
    start = 0
    for length in segments(features.frame_embeddings.float()):
        anchor_frames = range(start + length - 1, start - 1, -STRIDE)
        count = context * length // len(anchor_frames)
        pool = is_rest[start : start + length].flatten().nonzero()[:, 0] + start * num_cells
        units = F.normalize(flat[pool], dim=-1)
        for frame in anchor_frames:
            rest = is_rest[frame].nonzero()[:, 0] + frame * num_cells
            anchors = rest[density_peaks(flat[rest], count, NEIGHBORS)[0]]
            nearest = (units @ F.normalize(flat[anchors], dim=-1).mT).argmax(dim=-1)
            means, counts = means_of(flat[pool], nearest, count)
            weights = (1 / (counts + 1)).clamp(min=BETA)[:, None]
            kept.append(anchors)
            values.append(weights * flat[anchors] + (1 - weights) * means)
        start += length
    order = torch.cat(kept).sort()
    return order.values, torch.cat(values)[order.indices]


def segments(frames: Tensor) -> list[int]:
    """Lengths between cuts: where frames differ, and at the least similar pairs in any case."""
    similarity = F.cosine_similarity(frames[:-1], frames[1:], dim=-1)
    cuts = similarity < TAU
    cuts[similarity.topk(min(NUM_SEGMENTS - 1, len(similarity)), largest=False).indices] = True
    ends = [-1, *cuts.nonzero()[:, 0].tolist(), len(frames) - 1]
    return [stop - start for start, stop in pairwise(ends)]
