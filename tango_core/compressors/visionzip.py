"""VisionZip: keep the tokens with the most attention, merge the rest into a few contextual ones.

Paper: "VisionZip: Longer is Better but Not Necessary in Vision Language Models", Yang et al., CVPR
2025, Section 3, https://arxiv.org/abs/2412.04467. The release supports images and encoders with
a class token. This class follows the adapter of the HoliTom repository, which is made for video
models without a class token.

The adapter emits a frame's dominant tokens before its contextual ones; here a contextual token
has its target's position, and positions ascend. On models with a newline per row the adapter also
permutes the positions of dominant tokens and adds newlines for empty rows; these faults are not
reproduced.

SToP's release (rlqja1107/SToP at 3bf998c) changes three things (`stop`): dominant tokens are ranked
by attention minus sink scores, contextual targets may not be at positions with high sink scores,
and budgets are those of its scripts. It compares indices into the list of remaining tokens with
grid positions, may place two targets at one position, and fails at the end of the list; only
`legacy` reproduces this (a second target at a position is dropped, and the search stops at the last
position).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, ClassVar, Literal

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from torch import Tensor

from tango_core.combination import Combination, Terms, in_order, unchanged
from tango_core.compressors.base import Compressor, num_kept
from tango_core.compressors.options import Ratio
from tango_core.compressors.stop import Stop, checked_stop, stop_for
from tango_core.ops.blocks import take_frames
from tango_core.ops.budgets import ceil_share, evenly, floor_share
from tango_core.ops.finite import read_checked
from tango_core.ops.merging import mean_weights
from tango_core.ops.saliency import rank_descending, take_ranked
from tango_core.ops.transfer import upload_together
from tango_core.types import VisualFeatures

STOP_STRENGTHS = (0.03, 0.0)
# Tokens of a 196-token frame in SToP's scripts, by retention; other retentions are rounded down.
STOP_TOTALS = {0.1: 20, 0.15: 30, 0.2: 40, 0.25: 50}
NUM_SINKS = 20


@dataclass(frozen=True)
class VisionZip(Compressor):
    """Dominant tokens by received attention, plus evenly spaced ones into which the others merge.

    Every frame keeps ceil(retention * L) tokens: 20, 30 and 40 of 196 at 10, 15 and 20 %, as the
    adapter's scripts. Of these round(contextual_ratio * L) are contextual (10 of 196 in Tango's
    comparison), but at least one is dominant. A contextual token is its
    target plus the mean of the tokens whose keys are most similar to the target's: a sum of about
    twice the usual norm, as published.

    Attributes:
        retention: Share of the tokens to keep, in (0, 1].
        contextual_ratio: Number of contextual tokens as a share of a frame's tokens, in [0, 1]; 0
            keeps only dominant tokens.
        stop: Reduce the attention of sinks, `{"spatial": 0.03, "temporal": 0, "gamma": 1.1}` as
            published; see `stop.py`. `None` disables it. With `legacy` the budgets are also
            the release's: int(retention * L), of which 54 of 64 dominant.
        budget: `"official"` rounds every frame up; `"exact"` keeps round(retention * T * L) tokens,
            as evenly as whole tokens allow.
    """

    added_options: ClassVar[Mapping[str, Any]] = {"stop": None, "budget": "official"}

    needs = frozenset({"attention", "keys"})

    contextual_ratio: Ratio = 0.05
    stop: Mapping[str, Any] | None = field(default=None, hash=False)
    budget: Literal["official", "exact"] = "official"

    def __post_init__(self) -> None:
        """Check the options."""
        super().__post_init__()
        if self.stop is not None:
            stop = checked_stop("visionzip", self.stop, STOP_STRENGTHS)
            object.__setattr__(self, "stop", stop)

    @property
    def averages(self) -> bool:
        """False: a contextual token is the sum of its target and a mean."""
        return False

    @property
    def checks_in_plan(self) -> bool:
        """Whether `stop` is set: the host then reads the sinks, and checks finiteness with them."""
        return self.stop is not None

    def _plan(self, features: VisualFeatures) -> Combination:
        """Process all frames with equal budgets together."""
        attention = features.signal("attention")
        num_frames, tokens_per_frame, _ = features.tokens.shape
        stop = stop_for(self.stop, features)
        scores = attention.float() if stop is None else stop.lowered(attention)
        sinks = None
        if stop is not None:
            sinks = rank_descending(stop.sink_scores(attention))[:NUM_SINKS]
        ranked = rank_descending(scores)
        budgets = self._budgets(num_frames, tokens_per_frame, stop)
        parts = [unchanged(take_ranked(ranked, [dominant for dominant, _ in budgets]))]
        order, places = None, np.arange(0)
        if self.checks_in_plan:
            given = ranked.new_empty(0) if sinks is None else sinks
            order, places = read_checked(features, self.needs, ranked, given)
        for dominant, contextual in dict.fromkeys(budgets):
            if contextual:
                own = [f for f, budget in enumerate(budgets) if budget == (dominant, contextual)]
                targets = _even_targets(len(own), tokens_per_frame - dominant, contextual)
                if order is not None and stop is not None:
                    left = np.sort(order[own, dominant:], axis=1)
                    targets = _moved_targets(targets, left, places, stop)
                numbers, columns, others = upload_together(
                    [own, _columns(targets), _columns(~targets)], ranked.device
                )
                rest = take_frames(ranked, own)[:, dominant:].sort(dim=1).values
                keys = take_frames(features.signal("keys"), own)
                parts += _contextual(keys, rest, numbers, columns, others)
        return in_order(features, parts)

    def _budgets(
        self, num_frames: int, tokens_per_frame: int, stop: Stop | None
    ) -> list[tuple[int, int]]:
        """Dominant and contextual tokens of every frame."""
        if stop is not None and stop.legacy and self.budget == "official":
            total = floor_share(tokens_per_frame, self.retention)
            if tokens_per_frame == 196:
                total = STOP_TOTALS.get(self.retention, total)
            total = max(1, total)
            dominant = max(1, int(total * 54 / 64))
            return [(dominant, total - dominant)] * num_frames
        if self.budget == "exact":
            totals = evenly(num_kept(num_frames * tokens_per_frame, self.retention), num_frames)
        else:
            share = ceil_share(tokens_per_frame, self.retention)
            totals = [min(tokens_per_frame, share)] * num_frames
        wanted = round(self.contextual_ratio * tokens_per_frame)
        contextual = [max(0, min(wanted, total - 1)) for total in totals]
        return [(total - part, part) for total, part in zip(totals, contextual, strict=True)]


def _even_targets(num_frames: int, num_rest: int, contextual: int) -> NDArray[np.bool_]:
    """(T, R) bool, targets among R remaining positions: every `step`-th, in every frame."""
    step = max(1, num_rest // contextual)
    chosen = np.zeros((num_frames, num_rest), dtype=bool)
    chosen[:, : contextual * step : step] = True
    return chosen


def _moved_targets(
    even: NDArray[np.bool_], rest: NDArray[np.int64], sinks: NDArray[np.int64], stop: Stop
) -> NDArray[np.bool_]:
    """Move targets on sinks forward to the next position without a sink, if there is one.

    Args:
        even: (T, R) bool, the targets without sinks, equal in all frames.
        rest: (T, R) positions that are not dominant.
        sinks: Positions of sinks.
        stop: The option; its `legacy` reproduces the release's faults.

    Returns:
        (T, R) bool, equally many targets in every frame.
    """
    num_rest = even.shape[1]
    starts = np.flatnonzero(even[0]).tolist()
    chosen = np.zeros_like(even)
    if stop.legacy:
        places = set(sinks.tolist())
        moved = {next((p for p in range(s, num_rest) if p not in places), s) for s in starts}
        chosen[:, sorted(moved)] = True
        return chosen
    for frame, sink in enumerate(np.isin(rest, sinks).tolist()):
        taken: set[int] = set()
        for target in starts:
            free = (p for p in range(target, num_rest) if not sink[p] and p not in taken)
            back = (p for p in (target, *range(num_rest)) if p not in taken)
            taken.add(next(free, next(back)))
        chosen[frame, list(taken)] = True
    return chosen


def _columns(chosen: NDArray[np.bool_]) -> NDArray[np.int64]:
    """(T, n) columns of the true entries; every row has equally many."""
    return np.nonzero(chosen)[1].reshape(len(chosen), -1)


def _contextual(
    keys: Tensor, rest: Tensor, numbers: Tensor, columns: Tensor, left: Tensor
) -> list[Terms]:
    """Terms of contextual tokens: the target plus the mean of the tokens most similar to it.

    Args:
        keys: (T, L, Dk) keys of some frames.
        rest: (T, R) positions in these frames that are not dominant.
        numbers: (T,) indices of these frames in the clip.
        columns: (T, C) columns of the targets in `rest`.
        left: (T, R - C) the other columns.
    """
    num_frames, tokens_per_frame, _ = keys.shape
    targets, others = rest.gather(1, columns), rest.gather(1, left)
    contextual = targets.shape[1]
    units = F.normalize(keys.float(), dim=-1)
    frames = torch.arange(num_frames, device=rest.device)[:, None]
    nearest = torch.bmm(units[frames, others], units[frames, targets].mT).argmax(dim=-1)
    starts = numbers[:, None] * tokens_per_frame
    positions = targets + starts
    labels = (nearest + frames * contextual).flatten()
    weights, _ = mean_weights(labels, num_frames * contextual)
    into = positions.gather(1, nearest).flatten()
    return [
        Terms(positions.flatten()[:0], into, (others + starts).flatten(), weights),
        unchanged(positions.flatten()),
    ]
