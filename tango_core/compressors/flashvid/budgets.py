"""FlashVID's counts: chosen tokens per frame, tree tokens per segment and per frame.

Host arithmetic. The release rounds up twice in every frame; the exact budget divides
round(retention * T * L) by largest remainder.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from tango_core.compressors.base import num_kept
from tango_core.ops.budgets import apportion, ceil_share, evenly, fill

Counts = NDArray[np.int64]


@dataclass(frozen=True)
class Budgets:
    """What a clip may keep.

    Attributes:
        chosen: Chosen tokens of every frame.
        totals: Tokens of every segment, chosen and tree tokens together.
        exact: Whether tree tokens are divided by largest remainder instead of rounded up.
    """

    chosen: list[int]
    totals: list[int]
    exact: bool


def budgets_of_frames(
    num_frames: int, tokens_per_frame: int, retention: float, ratio: float, *, exact: bool
) -> tuple[list[int], list[int]]:
    """All tokens and chosen tokens of every frame, whatever the segments; see `plan_budgets`."""
    if exact:
        total = num_kept(num_frames * tokens_per_frame, retention)
        per_frame = evenly(total, num_frames)
        chosen = evenly(min(total, ceil_share(total, ratio)), num_frames)
        return per_frame, [min(part, whole) for part, whole in zip(chosen, per_frame, strict=True)]
    # The release's own rounding differs from this on no grid of a real model.
    frame = min(tokens_per_frame, ceil_share(tokens_per_frame, retention))
    part = min(frame, ceil_share(frame, ratio))
    return [frame] * num_frames, [part] * num_frames


def plan_budgets(
    lengths: list[int], tokens_per_frame: int, retention: float, ratio: float, *, exact: bool
) -> Budgets:
    """Divide a clip's budget.

    Args:
        lengths: Frames of every segment.
        tokens_per_frame: L.
        retention: Share of the tokens to keep, in (0, 1).
        ratio: Share of the budget that is chosen, in [0, 1].
        exact: Meet round(retention * T * L) instead of rounding up in every frame.
    """
    per_frame, chosen = budgets_of_frames(
        sum(lengths), tokens_per_frame, retention, ratio, exact=exact
    )
    bounds = np.cumsum([0, *lengths])
    sums = np.concatenate([[0], np.cumsum(per_frame)])[bounds]
    return Budgets(chosen, np.diff(sums).tolist(), exact)


def plan_clusters(budgets: Budgets, lengths: list[int], roots: Counts) -> Counts:
    """Tree tokens of every frame.

    Args:
        budgets: Of the clip.
        lengths: Frames of every segment.
        roots: (T,) roots of trees in every frame.

    Returns:
        (T,) whole numbers, at most `roots`.
    """
    bounds = np.cumsum([0, *lengths])[:-1]
    chosen = np.add.reduceat(np.array(budgets.chosen), bounds)
    wanted = np.array(budgets.totals) - chosen
    found = np.add.reduceat(roots, bounds)
    if budgets.exact:
        # What a segment cannot use goes to the others.
        weights = np.maximum(wanted, 1e-9).astype(float)
        shares = fill(float(wanted.sum()), weights, found.astype(float))
        ratios = np.repeat(shares / np.maximum(found, 1), lengths)
        return apportion(int(wanted.sum()), roots * ratios, roots)
    counts = np.empty_like(roots)
    for segment, (start, length) in enumerate(zip(bounds.tolist(), lengths, strict=True)):
        own = slice(start, start + length)
        # Rounded as the release rounds, whose golden vectors depend on the last bit of the product.
        share = wanted[segment] / found[segment] if found[segment] else 1.0
        counts[own] = (
            roots[own]
            if share >= 1
            else [math.ceil(count * share) for count in roots[own].tolist()]
        )
    return counts
