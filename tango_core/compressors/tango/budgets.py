"""Tango's budgets: how many tokens every frame and every static part may keep.

Computed on the host (NumPy and Python integers), once per clip from a few kilobytes of thresholded
similarities, so that the device needs no further synchronisation.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from tango_core.compressors.base import num_kept
from tango_core.ops.budgets import apportion, fill

if TYPE_CHECKING:
    from tango_core.compressors.tango.method import Tango

SpatialPositions = NDArray[np.int64]


@dataclass(frozen=True)
class Part:
    """Tokens that compete for a budget: one frame's dynamic tokens, or one segment's static ones.

    Attributes:
        frame: Frame of the kept tokens' positions.
        num_frames: Number of frames that every token is averaged over; 1 unless the part is static.
        spatial: (m,) ascending spatial positions h * W + w.
        salient: Number of tokens kept for their saliency.
        candidates: Number of most salient tokens from which these are chosen.
        merged: Number of tokens kept as anchors of merging.
    """

    frame: int
    num_frames: int
    spatial: SpatialPositions
    salient: int = 0
    candidates: int = 0
    merged: int = 0


@dataclass(frozen=True)
class TokenGroup:
    """Parts whose unselected tokens are clustered and merged together.

    All parts of a group have the same spatial positions. Counts are cached, because planning reads
    them hundreds of times while the GPU waits.

    Attributes:
        parts: One per frame for the dynamic tokens of a segment, a single one otherwise.
    """

    parts: tuple[Part, ...]

    @cached_property
    def num_tokens(self) -> int:
        """Number of tokens of the group before compression."""
        return sum(len(part.spatial) for part in self.parts)

    @cached_property
    def num_salient(self) -> int:
        """Number of tokens kept for their saliency."""
        return sum(part.salient for part in self.parts)

    @cached_property
    def merged(self) -> int:
        """Number of anchors of the group; all remaining tokens if the budget allows."""
        return min(self.num_left, sum(part.merged for part in self.parts))

    @cached_property
    def num_left(self) -> int:
        """Number of tokens left to merge after selection."""
        return self.num_tokens - self.num_salient

    @cached_property
    def num_kept(self) -> int:
        """Total number of tokens that the group keeps."""
        return self.merged + self.num_salient


def plan_groups(
    lengths: list[int], static: np.ndarray, never_salient: frozenset[int], options: Tango
) -> list[TokenGroup]:
    """Divide a clip into groups with budgets.

    Args:
        lengths: Frames of every segment, adding up to T.
        static: (T - 1, L) bool, whether a spatial position passes the static threshold between
            frames i and i + 1.
        never_salient: Spatial positions that may be merged but not picked for their saliency.
        options: The method's options.

    Returns:
        Groups that keep at least one token; single frames, static parts and dynamic segments in
        order of time.
    """
    tokens_per_frame, retention = static.shape[1], options.outer_retention
    groups: list[list[Part]] = []
    shares: list[float] = []
    start = 0
    for length in lengths:
        if length == 1:
            spatial = np.arange(tokens_per_frame)
            groups.append([Part(start, 1, spatial)])
            shares.append(retention)
        else:
            unchanged = static[start : start + length - 1].all(axis=0)
            still, moving = np.flatnonzero(unchanged), np.flatnonzero(~unchanged)
            saved = (length - 1) * len(still)
            size = length * tokens_per_frame
            share = min(retention / ((size - saved) / size), 1)
            if len(still):
                groups.append([Part(start, length, still)])
                shares.append(share)
            if len(moving):
                groups.append([Part(start + offset, 1, moving) for offset in range(length)])
                shares.append(share)
        start += length
    salient_ratio = 1.0 - options.context_ratio
    if options.budget == "official":
        # Rounded like the published code, in every part. Golden vectors depend on the last bit of
        # the products, so rounding has no tolerance here.
        totals = [
            math.ceil(len(part.spatial) * share)
            for group, share in zip(groups, shares, strict=True)
            for part in group
        ]
        salient = [int(total * salient_ratio) for total in totals]
    else:
        parts = [part for group in groups for part in group]
        totals, salient = _exact(parts, lengths, tokens_per_frame, retention, salient_ratio)
    counts = zip(totals, salient, strict=True)
    budgeted = [
        TokenGroup(
            tuple(_with_budget(part, *next(counts), never_salient, options.alpha) for part in group)
        )
        for group in groups
    ]
    return [group for group in budgeted if group.num_kept]


def _with_budget(
    part: Part, total: int, salient: int, never_salient: frozenset[int], alpha: float
) -> Part:
    """Set a part's budget; salient tokens beyond its capacity become merged tokens."""
    eligible = len(part.spatial) - len(never_salient.intersection(part.spatial.tolist()))
    salient = min(salient, eligible)
    candidates = int(min(alpha * salient, eligible))
    return Part(part.frame, part.num_frames, part.spatial, salient, candidates, total - salient)


def _exact(
    parts: list[Part],
    lengths: list[int],
    tokens_per_frame: int,
    retention: float,
    salient_ratio: float,
) -> tuple[list[int], list[int]]:
    """Divide round(retention * T * L) tokens over the clip, or keep everything if less exists.

    Segments share the clip's budget by their length, parts share a segment's by their size, and
    both the totals and their salient parts are rounded by largest remainder.

    Returns:
        Total and salient tokens of every part.
    """
    sizes = np.array([len(part.spatial) for part in parts], dtype=np.int64)
    segment_of = np.searchsorted(np.cumsum(lengths), [part.frame for part in parts], side="right")
    capacity = np.bincount(segment_of, weights=sizes).astype(np.float64)
    total = num_kept(tokens_per_frame * sum(lengths), retention)
    ideal = fill(float(total), np.array(lengths, dtype=float), capacity)
    totals = apportion(total, sizes * (ideal / capacity)[segment_of], sizes)
    salient = apportion(round(int(totals.sum()) * salient_ratio), totals * salient_ratio, totals)
    return totals.tolist(), salient.tolist()
