"""Tango's selection on an accelerator: as many calls for thirty segments as for one.

A GPU does a small call in the time that it takes to ask for it, so what counts is the number of
calls. The CPU way (`select.py`) makes one batch per shape and wastes no arithmetic; here

* salient tokens are picked in all parts of the clip at once,
* what is left of every group is a pool, and pools are padded into at most `MAX_SHAPES` shapes,
* the whole plan is uploaded in one piece.

Both ways keep the same tokens, but for distances that differ by less than float32 can say.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate, pairwise
from typing import TYPE_CHECKING

import numpy as np
import torch
from numpy.typing import ArrayLike
from torch import Tensor

from tango_core.compressors.tango.budgets import Part, TokenGroup
from tango_core.compressors.tango.clusters import merge_into_anchors, one_per_cluster
from tango_core.compressors.tango.distances import ClipTensors, distances_between
from tango_core.ops.saliency import rank_descending
from tango_core.ops.transfer import upload_together

if TYPE_CHECKING:
    from tango_core.compressors.tango.method import Tango

MAX_SHAPES = 3
# What the hundred calls of one more shape cost, in distances: a GPU makes that many of 3584
# channels in about the time of the calls, 0.3 ms.
SHAPE_COST = 2**21


@dataclass(frozen=True, eq=False)
class Parts:
    """All parts of a plan, padded to Q parts of M positions; Q counts the parts.

    Attributes:
        plan: The parts themselves, for sizes on the host.
        spatial: (Q, M) int64 spatial positions; padding repeats position 0.
        sizes: (Q,) positions that are no padding.
        frame: (Q,) frame whose positions the kept tokens take.
        spans: (Q,) frames every token is averaged over.
        salient: (Q,) tokens to pick.
        candidates: (Q,) tokens to pick them among.
        group: (Q,) number of the group.
        keeps_left: (Q,) 1 where all tokens that are not picked are kept, too.
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

    def present(self) -> Tensor:
        """(Q, M) bool, what is no padding."""
        return torch.arange(self.spatial.shape[1], device=self.spatial.device) < self.sizes[:, None]


@dataclass(frozen=True, eq=False)
class Pools:
    """Groups of about one size whose left tokens are clustered.

    Attributes:
        widest: M, the most tokens left in a group.
        num_centers: The most anchors of a group.
        starts: (P,) first token of every group when all tokens of the clip are ordered by group,
            those that are left first.
        left: (P,) tokens left.
        merged: (P,) anchors.
    """

    widest: int
    num_centers: int
    starts: Tensor
    left: Tensor
    merged: Tensor


def write_anchors(
    clip: ClipTensors,
    groups: Sequence[TokenGroup],
    options: Tango,
    anchors: Tensor,
    weights: Tensor,
) -> None:
    """Write the anchor and the weight of every token of a clip.

    Args:
        clip: Measured features.
        groups: The plan.
        options: Of the method.
        anchors: (T * L + 1,) int64; the last entry takes what goes nowhere.
        weights: (T * L + 1,) float32.
    """
    nowhere = len(anchors) - 1
    parts, pools = _uploaded(groups, clip.tokens.device)
    present = parts.present()
    own = parts.frame[:, None] * clip.tokens.shape[1] + parts.spatial
    picked = _pick(clip, parts, present, own, options)
    left = present & ~picked
    stays = picked | (left & (parts.keeps_left > 0)[:, None])
    target, weight = own.masked_fill(~stays, nowhere), stays.float()
    if pools:
        # One more entry takes what pads the pools.
        target, weight = (
            torch.cat([values.flatten(), values.new_full((1,), nothing)])
            for values, nothing in ((target, nowhere), (weight, 0.0))
        )
        # By group, what is left before what is picked; padding behind all groups.
        keys = (2 * parts.group[:, None] + picked).masked_fill(~present, 2 * len(groups))
        entries, rows = keys.flatten().sort(stable=True).indices, own.flatten()
        for pool in pools:
            _merge(clip, pool, entries, rows, options, target, weight)
        target, weight = target[:-1].view(own.shape), weight[:-1].view(own.shape)
    # A static token is the mean over the frames of its segment: equal weights.
    longest = max(part.num_frames for part in parts.plan)
    steps = torch.arange(longest, device=own.device)[:, None]
    outside = ~((steps < parts.spans[:, None, None]) & present[:, None])
    spread = own[:, None] + steps * clip.tokens.shape[1]
    places = spread.masked_fill(outside, nowhere).flatten()
    anchors.scatter_(0, places, target[:, None].masked_fill(outside, nowhere).flatten())
    shares = (weight / parts.spans[:, None])[:, None].masked_fill(outside, 0.0)
    weights.scatter_(0, places, shares.flatten())


def _uploaded(groups: Sequence[TokenGroup], device: torch.device) -> tuple[Parts, list[Pools]]:
    """The plan on the device, and the groups that are clustered by size."""
    plan = tuple(part for group in groups for part in group.parts)
    spatial = np.zeros((len(plan), max(len(part.spatial) for part in plan)), dtype=np.int64)
    for row, part in zip(spatial, plan, strict=True):
        row[: len(part.spatial)] = part.spatial
    lengths = [len(group.parts) for group in groups]
    starts = [0, *accumulate(group.num_tokens for group in groups)]
    clustered = [n for n, group in enumerate(groups) if 0 < group.merged < group.num_left]
    shapes = few_shapes([groups[number].num_left for number in clustered])
    members = [[clustered[place] for place in places] for places in shapes]
    arrays: list[ArrayLike] = [
        spatial,
        [len(part.spatial) for part in plan],
        *([getattr(part, name) for part in plan] for name in ("frame", "num_frames", "salient")),
        [part.candidates for part in plan],
        np.repeat(np.arange(len(groups)), lengths),
        np.repeat([0 < group.merged == group.num_left for group in groups], lengths),
        *([starts[number] for number in numbers] for numbers in members),
        *([groups[number].num_left for number in numbers] for numbers in members),
        *([groups[number].merged for number in numbers] for numbers in members),
    ]
    uploaded = upload_together(arrays, device)
    parts, rest = Parts(plan, *uploaded[:8]), uploaded[8:]
    count = len(shapes)
    pools = [
        Pools(
            max(groups[number].num_left for number in numbers),
            max(groups[number].merged for number in numbers),
            *rest[place::count],
        )
        for place, numbers in enumerate(members)
    ]
    return parts, pools


def few_shapes(sizes: Sequence[int], most: int = MAX_SHAPES) -> list[list[int]]:
    """Divide pools into few shapes such that padding costs as little as possible.

    A shape of n pools costs n times the square of its largest pool, the matrices of distances, and
    its calls (`SHAPE_COST`).

    Args:
        sizes: Tokens of every pool.
        most: Shapes there may be.

    Returns:
        Numbers of the pools of every shape, shapes by size; at most `most`, none empty.
    """
    order = sorted(range(len(sizes)), key=lambda number: sizes[number])
    # For the first pools the lowest cost, and the bounds of its shapes.
    best: list[tuple[int, tuple[int, ...]]] = [(0, (0,))]
    for stop in range(1, len(order) + 1):
        best.append((SHAPE_COST + stop * sizes[order[stop - 1]] ** 2, (0, stop)))
    for _ in range(most - 1):
        known, best = best, list(best)
        for stop in range(1, len(order) + 1):
            square = sizes[order[stop - 1]] ** 2
            for start in range(1, stop):
                cost, bounds = known[start]
                way = cost + SHAPE_COST + (stop - start) * square, (*bounds, stop)
                best[stop] = min(best[stop], way)
    return [order[start:stop] for start, stop in pairwise(best[-1][1])]


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
        chosen = one_per_cluster(
            between, parts.salient, parts.candidates, num_salient, options.num_neighbors
        )
    local = ranked.gather(1, chosen).masked_fill(slots >= parts.salient[:, None], num_positions)
    picked = present.new_zeros(num_parts, num_positions + 1)
    return picked.scatter_(1, local, True)[:, :num_positions]


def _scores(clip: ClipTensors, parts: Parts, present: Tensor) -> Tensor:
    """(Q, M) scores, averaged over a static part's frames; -inf where not to be picked."""
    scores = clip.scores[parts.frame]
    if max(part.num_frames for part in parts.plan) > 1:
        frames = torch.arange(len(clip.scores), device=scores.device) - parts.frame[:, None]
        inside = (frames >= 0) & (frames < parts.spans[:, None])
        scores = inside.float() @ clip.scores / parts.spans[:, None]
    eligible = present
    if clip.excluded is not None:
        eligible = eligible & ~clip.excluded[parts.spatial]
    return scores.gather(1, parts.spatial).masked_fill(~eligible, -torch.inf)


def _merge(
    clip: ClipTensors,
    pools: Pools,
    entries: Tensor,
    rows: Tensor,
    options: Tango,
    target: Tensor,
    weight: Tensor,
) -> None:
    """Write where the tokens of some pools go, and with which weight.

    Args:
        clip: Measured features.
        pools: The groups.
        entries: (Q * M,) entries of the padded parts, ordered by group.
        rows: (Q * M,) flat position of every entry.
        options: Of the method.
        target: (Q * M + 1,) written to.
        weight: (Q * M + 1,) written to.
    """
    nowhere = clip.tokens.shape[0] * clip.tokens.shape[1]
    places = torch.arange(pools.widest, device=rows.device)
    members = places < pools.left[:, None]
    others = ~members
    slots = entries[(pools.starts[:, None] + places).clamp(max=len(entries) - 1)]
    points = rows[slots]
    # No pool keeps all that is left: what `legacy_writeback` asks for is never so here.
    found, share = merge_into_anchors(
        distances_between(clip, points),
        points,
        members,
        pools.merged,
        torch.zeros_like(pools.merged, dtype=torch.bool),
        pools.num_centers,
        options,
        nowhere,
    )
    slots = slots.masked_fill(others, len(target) - 1).flatten()
    target.scatter_(0, slots, found.masked_fill(others, nowhere).flatten())
    weight.scatter_(0, slots, share.masked_fill(others, 0.0).flatten())
