"""Tango's selection: which tokens are kept, and into which of them every other is merged.

On a CPU groups of one shape run as one batch. A group in one frame needs one matrix of distances,
for picking, clustering and assignment. In a group across frames candidates compete within their
frame only: they are compared first, and the large matrix then holds only the tokens that were not
picked.
An accelerator takes another way to the same tokens (`on_device.py`).
All sizes come from the plan, so nothing here waits for the device.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from tango_core.compressors.tango.batches import Batch, make_batches
from tango_core.compressors.tango.budgets import TokenGroup
from tango_core.compressors.tango.clusters import merge_into_anchors, one_per_cluster
from tango_core.compressors.tango.distances import (
    ClipTensors,
    distances_between,
    distances_in_frames,
)
from tango_core.compressors.tango.on_device import write_anchors
from tango_core.ops.saliency import rank_descending

if TYPE_CHECKING:
    from tango_core.compressors.tango.method import Tango


@dataclass(frozen=True, eq=False)
class Selection:
    """Kept tokens and the weighted rows they are made of.

    Attributes:
        kept: (K,) int64 ascending flat positions.
        sources: (E,) int64 flat rows, grouped by the token they go into.
        offsets: (K,) int64 first entry of every kept token.
        weights: (E,) float32.
    """

    kept: Tensor
    sources: Tensor
    offsets: Tensor
    weights: Tensor


def select_tokens(clip: ClipTensors, groups: Sequence[TokenGroup], options: Tango) -> Selection:
    """Choose the kept tokens of a clip and what is merged into each.

    Args:
        clip: Measured features.
        groups: The plan.
        options: Of the method.
    """
    num_frames, tokens_per_frame, _ = clip.tokens.shape
    total = num_frames * tokens_per_frame
    anchors = torch.full((total + 1,), total, device=clip.tokens.device)
    weights = torch.zeros(total + 1, device=clip.tokens.device)
    if clip.tokens.device.type == "cpu":
        for batch in make_batches(groups, clip.tokens.device):
            _merge_batch(clip, batch, options, anchors, weights)
    else:
        write_anchors(clip, groups, options, anchors, weights)
    num_kept = sum(group.num_kept for group in groups)
    num_sources = sum(
        group.parts[0].num_frames * (group.num_kept if not group.merged else group.num_tokens)
        for group in groups
    )
    order = anchors[:total].sort(stable=True)
    targets, sources = order.values[:num_sources], order.indices[:num_sources]
    positions = torch.arange(total + 1, device=anchors.device)
    is_kept = torch.zeros_like(positions, dtype=torch.bool).scatter_(0, anchors, True)
    kept = positions.masked_fill(~is_kept, total)[:total].sort().values[:num_kept]
    return Selection(kept, sources, torch.searchsorted(targets, kept), weights[sources])


def _merge_batch(
    clip: ClipTensors, batch: Batch, options: Tango, anchors: Tensor, weights: Tensor
) -> None:
    """Write the anchor and the weight of every token of a batch."""
    num_frames = batch.frames.shape[1]
    tokens_per_frame = clip.tokens.shape[1]
    total = len(anchors) - 1
    own = (batch.frames[:, :, None] * tokens_per_frame + batch.spatial[:, None, :]).flatten(1)
    present = batch.present.repeat(1, num_frames)
    needs_clusters = any(0 < group.merged < group.num_left for group in batch.groups)
    shared = _distances_of_groups(clip, batch, own) if needs_clusters and num_frames == 1 else None
    picked = _pick(clip, batch, options, own, shared)
    left = present & ~picked
    if not needs_clusters:
        target = torch.where(batch.keeps_all[:, None], own, total)
        weight = torch.ones_like(own, dtype=torch.float32)
    elif shared is not None:
        target, weight = _merge(batch, options, shared, own, left, total)
    else:
        num_left = [group.num_left for group in batch.groups]
        slots = left.sort(dim=1, descending=True, stable=True).indices[:, : max(num_left)]
        rows = own.gather(1, slots)
        members = left.gather(1, slots)
        found = _merge(batch, options, distances_between(clip, rows), rows, members, total)
        target = torch.full_like(own, total).scatter_(1, slots, found[0])
        weight = torch.zeros_like(own, dtype=torch.float32).scatter_(1, slots, found[1])
    target = torch.where(picked, own, torch.where(left, target, total))
    weight = torch.where(picked, 1.0, weight)
    # A static token is the mean over the frames of its segment: equal weights.
    longest = max(group.parts[0].num_frames for group in batch.groups)
    steps = torch.arange(longest, device=own.device)[:, None]
    inside = (steps < batch.spans[:, None, None]) & present[:, None]
    spread = torch.where(inside, own[:, None] + steps * tokens_per_frame, total)
    anchors[spread] = torch.where(inside, target[:, None], total)
    weights[spread] = (weight / batch.spans[:, None])[:, None].expand_as(spread)


def _distances_of_groups(clip: ClipTensors, batch: Batch, own: Tensor) -> Tensor:
    """(P, M, M) squared distances of groups that lie in one frame each."""
    if all(len(group.parts[0].spatial) == clip.tokens.shape[1] for group in batch.groups):
        return distances_in_frames(clip, batch.host_frames[:, 0])
    return distances_between(clip, own, of_one_frame=True)


def _merge(
    batch: Batch, options: Tango, distances: Tensor, rows: Tensor, members: Tensor, total: int
) -> tuple[Tensor, Tensor]:
    """(P, M) the flat position every point is written to, and its weight there."""
    num_centers = max(group.merged for group in batch.groups)
    return merge_into_anchors(
        distances, rows, members, batch.merged, batch.keeps_all, num_centers, options, total
    )


def _pick(
    clip: ClipTensors, batch: Batch, options: Tango, own: Tensor, shared: Tensor | None
) -> Tensor:
    """Choose the salient tokens of every frame, at most one per cluster of candidates.

    Args:
        clip: Measured features.
        batch: The groups.
        options: Of the method.
        own: (P, F * M) flat positions.
        shared: (P, M, M) squared distances of groups in one frame, where there is a use for them
            anyway.

    Returns:
        (P, F * M) bool.
    """
    num_groups, num_frames = batch.frames.shape
    num_positions = batch.spatial.shape[1]
    device = clip.tokens.device
    parts = [part for group in batch.groups for part in group.parts]
    num_salient = max(part.salient for part in parts)
    num_candidates = max(part.candidates for part in parts)
    scores = _part_scores(clip, batch)
    ranked = rank_descending(scores)[..., :num_candidates]
    slots = torch.arange(num_salient, device=device)
    chosen = slots.expand(num_groups, num_frames, -1)
    if options.diverse and any(part.candidates > part.salient > 0 for part in parts):
        if shared is None:
            rows = own.view(num_groups, num_frames, -1).gather(2, ranked)
            between = distances_between(clip, rows.flatten(0, 1), of_one_frame=True)
        else:
            groups = torch.arange(num_groups, device=device)[:, None, None]
            between = shared[groups, ranked[:, 0, :, None], ranked[:, 0, None, :]]
        salient, candidates = batch.salient.flatten(), batch.candidates.flatten()
        chosen = one_per_cluster(
            between, salient, candidates, num_salient, options.num_neighbors
        ).view(num_groups, num_frames, -1)
    local = ranked.gather(2, chosen) if num_salient else chosen
    local = torch.where(slots < batch.salient[..., None], local, num_positions)
    picked = torch.zeros(num_groups, num_frames, num_positions + 1, dtype=torch.bool, device=device)
    return picked.scatter_(2, local, True)[..., :num_positions].flatten(1)


def _part_scores(clip: ClipTensors, batch: Batch) -> Tensor:
    """(P, F, M) scores, averaged over a static part's frames; -inf where not to be picked."""
    scores = clip.scores[batch.frames[:, :, None], batch.spatial[:, None, :]]
    if max(group.parts[0].num_frames for group in batch.groups) > 1:
        frames = torch.arange(len(clip.scores), device=scores.device)
        inside = (frames >= batch.frames) & (frames < batch.frames + batch.spans[:, None])
        means = inside.float() @ clip.scores / batch.spans[:, None]
        scores = means.gather(1, batch.spatial)[:, None]
    eligible = batch.present
    if clip.excluded is not None:
        eligible = eligible & ~clip.excluded[batch.spatial]
    return scores.masked_fill(~eligible[:, None], -torch.inf)
