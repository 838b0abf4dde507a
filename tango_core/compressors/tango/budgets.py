"""Tango's budgets: how many tokens every frame and every static group may keep.

Host arithmetic only (NumPy and Python integers), made once per clip from a few kilobytes of
thresholded similarities, so that the device runs through without stopping.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from tango_core.ops.budgets import apportion, fill

Budget = Literal["official", "exact"]
Cells = NDArray[np.int64]


@dataclass(frozen=True)
class Rules:
    """What budgets depend on.

    Attributes:
        retention: Share of the clip's tokens to keep, in (0, 1).
        context_ratio: Share of a budget that goes to merged tokens, in [0, 1].
        alpha: Candidates per salient token, at least 1.
        budget: `"official"` rounds up in every group; `"exact"` meets the clip's total.
        never_salient: Grid cells that may be merged but not picked for their saliency.
    """

    retention: float
    context_ratio: float
    alpha: float
    budget: Budget
    never_salient: frozenset[int]


@dataclass(frozen=True)
class Group:
    """Tokens that compete: one frame's dynamic tokens, or one segment's static ones.

    Attributes:
        frame: Frame whose positions the kept tokens take.
        num_frames: Frames every token is averaged over; 1 unless the group is static.
        cells: (m,) ascending grid cells.
        salient: Tokens kept for their saliency.
        candidates: Most salient tokens they are chosen among.
        merged: Tokens kept as anchors of merging.
    """

    frame: int
    num_frames: int
    cells: Cells
    salient: int = 0
    candidates: int = 0
    merged: int = 0


@dataclass(frozen=True)
class Pool:
    """Groups whose unpicked tokens are clustered and merged together; all have the same cells.

    Attributes:
        groups: One per frame for the dynamic tokens of a segment, a single one otherwise.
    """

    groups: tuple[Group, ...]

    @property
    def merged(self) -> int:
        """Anchors of the pool; as many as there are tokens if all fit."""
        return min(self.num_left, sum(group.merged for group in self.groups))

    @property
    def num_left(self) -> int:
        """Tokens left to merge after picking."""
        return sum(len(group.cells) - group.salient for group in self.groups)

    @property
    def num_kept(self) -> int:
        """Tokens the pool keeps in all."""
        return self.merged + sum(group.salient for group in self.groups)


def plan_pools(lengths: list[int], static: np.ndarray, rules: Rules) -> list[Pool]:
    """Divide a clip into pools with budgets.

    Args:
        lengths: Frames of every segment, adding up to T.
        static: (T - 1, L) bool, whether a cell passes the static threshold between frames i and i +
            1.
        rules: See `Rules`.

    Returns:
        Pools that keep at least one token; single frames, static groups and dynamic segments in
        order of time.
    """
    num_cells = static.shape[1]
    pools: list[list[Group]] = []
    shares: list[float] = []
    start = 0
    for length in lengths:
        if length == 1:
            cells = np.arange(num_cells)
            pools.append([Group(start, 1, cells)])
            shares.append(rules.retention)
        else:
            unchanged = static[start : start + length - 1].all(axis=0)
            still, moving = np.flatnonzero(unchanged), np.flatnonzero(~unchanged)
            saved = (length - 1) * len(still)
            share = min(rules.retention / ((length * num_cells - saved) / (length * num_cells)), 1)
            if len(still):
                pools.append([Group(start, length, still)])
                shares.append(share)
            if len(moving):
                pools.append([Group(start + offset, 1, moving) for offset in range(length)])
                shares.append(share)
        start += length
    if rules.budget == "official":
        budgeted = [
            Pool(tuple(_official(group, share, rules) for group in pool))
            for pool, share in zip(pools, shares, strict=True)
        ]
    else:
        budgeted = _exact(pools, lengths, num_cells, rules)
    return [pool for pool in budgeted if pool.num_kept]


def _official(group: Group, share: float, rules: Rules) -> Group:
    """Round a group's budget as the published code does: up, and its salient part down."""
    total = math.ceil(len(group.cells) * share)
    salient = int(total * (1.0 - rules.context_ratio))
    return _with_budget(group, total, salient, rules)


def _with_budget(group: Group, total: int, salient: int, rules: Rules) -> Group:
    """Fill in a group's budget; what cannot be salient is merged instead."""
    num_cells = len(group.cells)
    eligible = num_cells - len(rules.never_salient.intersection(group.cells.tolist()))
    salient = min(salient, eligible)
    candidates = min(int(rules.alpha * salient), eligible)
    return Group(group.frame, group.num_frames, group.cells, salient, candidates, total - salient)


def _exact(
    pools: list[list[Group]], lengths: list[int], num_cells: int, rules: Rules
) -> list[Pool]:
    """Meet round(retention * T * L) over the whole clip, or keep all there is if that is less.

    Segments share the clip's budget by their length, groups share a segment's by their size, and
    both the totals and their salient parts are rounded by largest remainder.
    """
    groups = [group for pool in pools for group in pool]
    sizes = np.array([len(group.cells) for group in groups], dtype=np.int64)
    segment_of = np.searchsorted(
        np.cumsum(lengths), [group.frame for group in groups], side="right"
    )
    capacity = np.bincount(segment_of, weights=sizes).astype(np.float64)
    total = max(1, round(rules.retention * num_cells * sum(lengths)))
    ideal = fill(float(total), np.array(lengths, dtype=float), capacity)
    salient_ratio = 1.0 - rules.context_ratio
    totals = apportion(total, sizes * (ideal / capacity)[segment_of], sizes)
    salient = apportion(round(int(totals.sum()) * salient_ratio), totals * salient_ratio, totals)
    chosen = iter(
        _with_budget(group, int(count), int(part), rules)
        for group, count, part in zip(groups, totals, salient, strict=True)
    )
    return [Pool(tuple(next(chosen) for _ in pool)) for pool in pools]
