"""Tango's selection: the kept tokens, and the kept token that every other is merged into.

The number of device calls does not depend on the number of segments, because small GPU calls are
limited by launch overhead:

* salient tokens are selected in all parts of the clip at once;
* the remaining tokens of groups of similar size are padded to one shape (`Pools`) and clustered in
  one batch;
* the plan is uploaded in one copy, and all sizes are known on the host, so there is no further
  synchronisation.

Rotated features (ST-RoPE) are computed per group (on an accelerator, for as many groups as fit a
fixed workspace), multiplied and overwritten, never stored for a whole clip. Norms scale the
products instead of the features, and half precision is converted to float32 when it is read.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import TYPE_CHECKING

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import ArrayLike
from torch import Tensor

from tango_core.combination import Combination
from tango_core.compressors.tango.budgets import Part, TokenGroup
from tango_core.ops.blocks import write_products
from tango_core.ops.clustering import assign_to_centers, density_peaks, products_to_distances
from tango_core.ops.merging import member_weights
from tango_core.ops.saliency import rank_descending
from tango_core.ops.st_rope import RotationTables, rotate, rotation_buffer
from tango_core.ops.transfer import upload_together
from tango_core.types import VisualFeatures

if TYPE_CHECKING:
    from tango_core.compressors.tango.method import Tango

# Groups are padded to one shape if the smallest has at least this share of the largest's tokens.
# On a GPU padding is cheaper than the hundred calls of another shape; on a CPU it is not.
LEAST_SHARE = {"cpu": 0.95, "device": 0.5}
# Groups of any sizes are padded to one shape while all padded distance matrices together have at
# most this many entries.
CHEAP_DISTANCES = {"cpu": 0, "device": 2**24}
# CPU, per core: floats of rotated tokens in one batched product (at least one group), and floats
# that are gathered and rotated in one call (1.5 MB, which fit the CPU's cache). GPU: floats of
# rotated tokens in one batched product (1 GB, which full utilisation needs).
CPU_WORKSPACE = 2**20
CPU_CHUNK = 3 * 2**17
DEVICE_WORKSPACE = 2**28


@dataclass(frozen=True, eq=False)
class ClipTensors:
    """Tensors of a clip that selection reads.

    Attributes:
        tokens: (T, L, D) any float dtype, contiguous.
        norms: (T, L) float32.
        scores: (T, L) float32.
        tables: Rotations of ST-RoPE, or `None` to cluster unrotated unit features.
        excluded: (L,) bool, spatial positions never selected by score; `None` for none.
    """

    tokens: Tensor
    norms: Tensor
    scores: Tensor
    tables: RotationTables | None
    excluded: Tensor | None


@dataclass(frozen=True, eq=False)
class Parts:
    """All Q parts of a plan, padded to M positions each.

    Attributes:
        plan: The parts, for sizes on the host.
        spatial: (Q, M) int64 spatial positions; padding repeats position 0.
        sizes: (Q,) number of positions without padding.
        frame: (Q,) frame of the kept tokens' positions.
        spans: (Q,) number of frames that every token is averaged over.
        salient: (Q,) number of tokens to select.
        candidates: (Q,) number of candidates for selection.
        group: (Q,) index of the group.
        keeps_left: (Q,) 1 where all unselected tokens are kept too.
    """

    plan: tuple[Part, ...]
    spatial: Tensor
    sizes: Tensor
    frame: Tensor
    spans: Tensor
    salient: Tensor
    candidates: Tensor
    group: Tensor
    keeps_left: Tensor


@dataclass(frozen=True, eq=False)
class Pools:
    """Groups of similar size whose remaining tokens are clustered in one batch.

    Attributes:
        widest: M, largest number of remaining tokens of a group.
        num_centers: Largest number of anchors of a group.
        starts: (P,) index of every group's first remaining token in the order of `entries` in
            `_merge`: by group, and in a group the remaining tokens before the selected ones.
        left: (P,) number of remaining tokens.
        merged: (P,) number of anchors, less than `left`.
    """

    widest: int
    num_centers: int
    starts: Tensor
    left: Tensor
    merged: Tensor


def select_tokens(
    features: VisualFeatures, clip: ClipTensors, groups: Sequence[TokenGroup], options: Tango
) -> Combination:
    """Choose the kept tokens of a clip and the tokens merged into each.

    Args:
        features: Features of the clip.
        clip: Tensors of the clip.
        groups: The plan.
        options: The method's options.
    """
    num_frames, tokens_per_frame, _ = clip.tokens.shape
    total = num_frames * tokens_per_frame
    anchors, weights = _anchors(clip, groups, options)
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
    return Combination(
        indices=kept,
        grid=(num_frames, *features.grid),
        timestamps=features.timestamps,
        offsets=F.pad(torch.searchsorted(targets, kept), (0, 1), value=num_sources),
        sources=sources,
        weights=weights[sources],
    )


def _anchors(
    clip: ClipTensors, groups: Sequence[TokenGroup], options: Tango
) -> tuple[Tensor, Tensor]:
    """Compute the anchor and the weight of every token of a clip.

    Returns:
        (T * L + 1,) int64 anchors, T * L for none, and (T * L + 1,) float32 weights; the last
        entry belongs to no token.
    """
    num_frames, tokens_per_frame, _ = clip.tokens.shape
    nowhere = num_frames * tokens_per_frame
    parts, pools = _uploaded(groups, clip.tokens.device)
    present = torch.arange(parts.spatial.shape[1], device=parts.sizes.device) < parts.sizes[:, None]
    own = parts.frame[:, None] * tokens_per_frame + parts.spatial
    picked = _pick(clip, parts, present, own, options)
    stays = picked | (present & (parts.keeps_left > 0)[:, None])
    target, weight = own.masked_fill(~stays, nowhere), stays.float()
    if pools:
        # An extra entry receives the padding of the pools.
        target, weight = (
            torch.cat([values.flatten(), values.new_full((1,), nothing)])
            for values, nothing in ((target, nowhere), (weight, 0.0))
        )
        # Order by group, remaining tokens before selected ones; padding last.
        keys = (2 * parts.group[:, None] + picked).masked_fill(~present, 2 * len(groups))
        entries, rows = keys.flatten().sort(stable=True).indices, own.flatten()
        for pool in pools:
            _merge(clip, pool, entries, rows, options, target, weight)
        target, weight = target[:-1].view(own.shape), weight[:-1].view(own.shape)
    anchors = torch.full((nowhere + 1,), nowhere, device=own.device)
    weights = torch.zeros(nowhere + 1, device=own.device)
    # A static token is the mean over its segment's frames, so they have equal weights.
    longest = max(part.num_frames for part in parts.plan)
    steps = torch.arange(longest, device=own.device)[:, None]
    outside = ~((steps < parts.spans[:, None, None]) & present[:, None])
    spread = own[:, None] + steps * tokens_per_frame
    places = spread.masked_fill(outside, nowhere).flatten()
    anchors.scatter_(0, places, target[:, None].masked_fill(outside, nowhere).flatten())
    shares = (weight / parts.spans[:, None])[:, None].masked_fill(outside, 0.0)
    return anchors, weights.scatter_(0, places, shares.flatten())


def _uploaded(groups: Sequence[TokenGroup], device: torch.device) -> tuple[Parts, list[Pools]]:
    """Upload the plan; returns its parts, and the groups to cluster in batches of similar size."""
    plan = tuple(part for group in groups for part in group.parts)
    spatial = np.zeros((len(plan), max(len(part.spatial) for part in plan)), dtype=np.int64)
    for row, part in zip(spatial, plan, strict=True):
        row[: len(part.spatial)] = part.spatial
    lengths = [len(group.parts) for group in groups]
    starts = [0, *accumulate(group.num_tokens for group in groups)]
    clustered = [n for n, group in enumerate(groups) if 0 < group.merged < group.num_left]
    sizes = [groups[number].num_left for number in clustered]
    members = [[clustered[place] for place in places] for places in group_by_size(sizes, device)]
    arrays: list[ArrayLike] = [
        spatial,
        [len(part.spatial) for part in plan],
        *([getattr(part, name) for part in plan] for name in ("frame", "num_frames", "salient")),
        [part.candidates for part in plan],
        np.repeat(np.arange(len(groups)), lengths),
        np.repeat([0 < group.merged == group.num_left for group in groups], lengths),
    ]
    for numbers in members:
        arrays += [
            [starts[number] for number in numbers],
            [groups[number].num_left for number in numbers],
            [groups[number].merged for number in numbers],
        ]
    uploaded = upload_together(arrays, device)
    pools = [
        Pools(
            max(groups[number].num_left for number in numbers),
            max(groups[number].merged for number in numbers),
            *uploaded[first : first + 3],
        )
        for numbers, first in zip(members, range(8, len(uploaded), 3), strict=True)
    ]
    return Parts(plan, *uploaded[:8]), pools


def group_by_size(sizes: Sequence[int], device: torch.device) -> list[list[int]]:
    """Divide groups into batches that are padded to one shape each, the largest groups first.

    Args:
        sizes: Number of remaining tokens of every group.
        device: Device of the clustering; it determines how much padding is worthwhile.

    Returns:
        Indices of the groups of every batch; none is empty.
    """
    kind = "cpu" if device.type == "cpu" else "device"
    batches: list[list[int]] = []
    for number in sorted(range(len(sizes)), key=lambda number: -sizes[number]):
        largest = sizes[batches[-1][0]] if batches else 0
        is_near = sizes[number] >= LEAST_SHARE[kind] * largest
        if batches and (is_near or (len(batches[-1]) + 1) * largest**2 <= CHEAP_DISTANCES[kind]):
            batches[-1].append(number)
        else:
            batches.append([number])
    return batches


def _pick(clip: ClipTensors, parts: Parts, present: Tensor, own: Tensor, options: Tango) -> Tensor:
    """(Q, M) bool, the salient tokens of every part, at most one per cluster of candidates."""
    num_parts, num_positions = own.shape
    num_salient = max(part.salient for part in parts.plan)
    if not num_salient:
        return torch.zeros_like(present)
    num_candidates = max(part.candidates for part in parts.plan)
    ranked = rank_descending(_scores(clip, parts, present))[:, :num_candidates]
    slots = torch.arange(num_salient, device=own.device)
    chosen = slots.expand(num_parts, -1)
    if options.diverse and any(part.candidates > part.salient > 0 for part in parts.plan):
        between = distances_between(clip, own.gather(1, ranked), of_one_frame=True)
        chosen = _one_per_cluster(between, parts, num_salient, options.num_neighbors)
    local = ranked.gather(1, chosen).masked_fill(slots >= parts.salient[:, None], num_positions)
    picked = present.new_zeros(num_parts, num_positions + 1)
    return picked.scatter_(1, local, True)[:, :num_positions]


def _scores(clip: ClipTensors, parts: Parts, present: Tensor) -> Tensor:
    """(Q, M) scores, averaged over a static part's frames; -inf where excluded."""
    scores = clip.scores[parts.frame]
    if max(part.num_frames for part in parts.plan) > 1:
        frames = torch.arange(len(clip.scores), device=scores.device) - parts.frame[:, None]
        inside = (frames >= 0) & (frames < parts.spans[:, None])
        scores = inside.float() @ clip.scores / parts.spans[:, None]
    eligible = present
    if clip.excluded is not None:
        eligible = eligible & ~clip.excluded[parts.spatial]
    return scores.gather(1, parts.spatial).masked_fill(~eligible, -torch.inf)


def _one_per_cluster(
    distances: Tensor, parts: Parts, num_salient: int, num_neighbors: int
) -> Tensor:
    """Ranks of the most salient candidate of every cluster.

    Args:
        distances: (Q, C, C) squared distances between a part's candidates by descending score.
        parts: The parts, with their numbers of candidates and of clusters.
        num_salient: K, largest number of clusters of a part.
        num_neighbors: Number of nearest neighbours of the density estimate.

    Returns:
        (Q, K) int64 in [0, C); entries beyond the part's number of clusters are undefined.
    """
    num_candidates = distances.shape[1]
    ranks = torch.arange(num_candidates, device=distances.device)
    members = ranks < parts.candidates[:, None]
    order = density_peaks(distances, num_salient, num_neighbors, members=members)
    slots = torch.arange(num_salient, device=distances.device)
    centers = order.masked_fill(slots >= parts.salient[:, None], num_candidates)
    labels = assign_to_centers(distances, centers)
    others = (labels[:, None] != slots[:, None]) | ~members[:, None]
    return ranks.expand(others.shape).masked_fill(others, num_candidates - 1).amin(dim=-1)


def _merge(
    clip: ClipTensors,
    pools: Pools,
    entries: Tensor,
    rows: Tensor,
    options: Tango,
    target: Tensor,
    weight: Tensor,
) -> None:
    """Write the anchor and the weight of every remaining token of the groups in a batch.

    Args:
        clip: Tensors of the clip.
        pools: The groups to cluster.
        entries: (Q * M,) entries of the padded parts, ordered by group.
        rows: (Q * M,) flat position of every entry.
        options: The method's options.
        target: (Q * M + 1,) output: anchors.
        weight: (Q * M + 1,) output: weights.
    """
    nowhere = clip.tokens.shape[0] * clip.tokens.shape[1]
    places = torch.arange(pools.widest, device=rows.device)
    members = places < pools.left[:, None]
    others = ~members
    slots = entries[(pools.starts[:, None] + places).clamp(max=len(entries) - 1)]
    points = rows[slots]
    distances = distances_between(clip, points)
    order = density_peaks(distances, pools.num_centers, options.num_neighbors, members=members)
    ranks = torch.arange(pools.num_centers, device=rows.device)
    chosen = order.masked_fill(ranks >= pools.merged[:, None], pools.widest)
    centers = chosen.sort(dim=-1).values
    labels = assign_to_centers(distances, centers)
    share = member_weights(labels, centers, members, options.beta)
    writers = chosen if options.legacy_writeback else centers
    padded = torch.cat([points, points.new_full((len(points), 1), nowhere)], dim=1)
    found = padded.gather(1, writers.gather(1, labels))
    slots = slots.masked_fill(others, len(target) - 1).flatten()
    target.scatter_(0, slots, found.masked_fill(others, nowhere).flatten())
    weight.scatter_(0, slots, share.masked_fill(others, 0.0).flatten())


def distances_between(clip: ClipTensors, rows: Tensor, *, of_one_frame: bool = False) -> Tensor:
    """Squared distances between the given tokens of a group, for several groups.

    Args:
        clip: Tensors of the clip.
        rows: (P, M) int64 flat positions of the tokens.
        of_one_frame: Whether all tokens of a group are from one frame, so time needs no rotation.

    Returns:
        (P, M, M) float32.
    """
    num_groups, num_points = rows.shape
    dim, device = clip.tokens.shape[-1], rows.device
    distances = torch.empty(num_groups, num_points, num_points, device=device)
    step = _at_once(num_points * dim, num_groups, device)
    if clip.tables is None:
        points = torch.empty(step, num_points, 1, dim, device=device)
    else:
        points = rotation_buffer((step, num_points), clip.tables)
    for start in range(0, num_groups, step):
        chunk = rows[start : start + step]
        rotated = points[: len(chunk)]
        _write_rotated(clip, chunk.flatten(), rotated.flatten(0, 1), of_one_frame)
        write_products(rotated.flatten(2), distances[start : start + step])
    norms = clip.norms.flatten()[rows]
    products_to_distances(distances, 1 / norms.clamp(min=1e-12))
    return distances


def _write_rotated(clip: ClipTensors, rows: Tensor, out: Tensor, of_one_frame: bool) -> None:
    """Gather the tokens at (n,) flat positions and write them, rotated, to `out`."""
    tokens_per_frame, dim = clip.tokens.shape[1:]
    tokens = clip.tokens.view(-1, dim)
    frames, spatial = rows // tokens_per_frame, rows % tokens_per_frame
    step = len(rows)
    if rows.device.type == "cpu":
        step = max(1, CPU_CHUNK * torch.get_num_threads() // dim)
    for start in range(0, len(rows), step):
        chunk = slice(start, start + step)
        found, target = tokens.index_select(0, rows[chunk]).float(), out[chunk]
        if clip.tables is None:
            target.copy_(found[:, None])
        else:
            of_time = [] if of_one_frame else [clip.tables.of_frames(frames[chunk])]
            rotate(found, [*of_time, *clip.tables.of_spatial(spatial[chunk])], out=target)


def _at_once(floats: int, count: int, device: torch.device) -> int:
    """How many of `count` items of `floats` floats to process at once, at least one per core."""
    if device.type == "cpu":
        at_once = max(1, CPU_WORKSPACE // max(floats, 1)) * torch.get_num_threads()
    else:
        at_once = max(1, DEVICE_WORKSPACE // max(floats, 1))
    return min(count, at_once)
