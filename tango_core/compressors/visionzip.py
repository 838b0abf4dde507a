"""VisionZip: keep the tokens with the most attention, merge the rest into a few contextual ones.

Paper: "VisionZip: Longer is Better but Not Necessary in Vision Language Models", Yang et al., CVPR
2025, Section 3, https://arxiv.org/abs/2412.04467. The release is made for images and an encoder
with a class token; video models without one use the adapter of the HoliTom repository, which is
followed here.

The adapter emits a frame's dominant tokens before its contextual ones; here a contextual token
stands at its target's position, and positions ascend. On models with a newline per row the adapter
also pairs dominant tokens with each other's positions and adds newlines for empty rows: a fault,
not reproduced.

SToP's release (rlqja1107/SToP at 3bf998c) changes three things (`stop`): dominant tokens are ranked
by lowered attention, no contextual target may stand where the sink score is high, and its budgets
are those of its scripts. There a position in the list of left tokens is compared with places of the
grid, two targets may fall on one position, and running off the list's end is an error; only
`legacy` does so (a second target on one position is dropped, and the last position ends the walk).
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
from tango_core.compressors.base import Compressor, num_kept, read_checked
from tango_core.compressors.options import raise_if_outside
from tango_core.compressors.stop import Stop, checked_stop, stop_for
from tango_core.ops.blocks import take_frames
from tango_core.ops.budgets import ceil_share, evenly, floor_share
from tango_core.ops.merging import mean_weights
from tango_core.ops.saliency import rank_descending, take_ranked
from tango_core.ops.transfer import upload_together
from tango_core.types import VisualFeatures

STOP_STRENGTHS = (0.03, 0.0)
# Tokens of a 196-token frame in SToP's scripts, by retention; others are rounded down.
STOP_TOTALS = {0.1: 20, 0.15: 30, 0.2: 40, 0.25: 50}
NUM_SINKS = 20


@dataclass(frozen=True)
class VisionZip(Compressor):
    """Dominant tokens by received attention, plus evenly spaced ones into which the others merge.

    Every frame keeps ceil(retention * L) tokens: 20, 30 and 40 of 196 at 10, 15 and 20 %, as the
    adapter's scripts. Of these round(contextual_ratio * L) are contextual (10 of 196, the setting
    Tango's comparison states), but always at least one is dominant. A contextual token is its
    target plus the mean of the tokens whose keys are most similar to the target's: a sum of about
    twice the usual norm, as published.

    Attributes:
        retention: Share of the tokens to keep, in (0, 1].
        contextual_ratio: Contextual tokens as a share of all tokens of a frame, in [0, 1]; 0 for
            dominant ones only.
        stop: Lower the attention of sinks, `{"spatial": 0.03, "temporal": 0, "gamma": 1.1}` as
            published; see `stop.py`. `None` for not. With `legacy` the budgets are the release's,
            too: int(retention * L), of which 54 of 64 dominant.
        budget: `"official"` rounds every frame up; `"exact"` keeps round(retention * T * L) tokens,
            as evenly as whole tokens allow.
    """

    added_options: ClassVar[Mapping[str, Any]] = {"stop": None, "budget": "official"}

    contextual_ratio: float = 0.05
    stop: Mapping[str, Any] | None = field(default=None, hash=False)
    budget: Literal["official", "exact"] = "official"

    def __post_init__(self) -> None:
        """Check the options."""
        super().__post_init__()
        raise_if_outside(self, 0, 1, "contextual_ratio")
        if self.stop is not None:
            stop = checked_stop("visionzip", self.stop, STOP_STRENGTHS)
            object.__setattr__(self, "stop", stop)

    @property
    def needs(self) -> frozenset[str]:
        """Received attention ranks tokens, keys say which are alike."""
        return frozenset({"attention", "keys"})

    @property
    def averages(self) -> bool:
        """No: a contextual token is a sum of two."""
        return False

    @property
    def checks_in_plan(self) -> bool:
        """With `stop` the host has to know where sinks are, and looks at everything else there."""
        return self.stop is not None

    def _plan(self, features: VisualFeatures) -> Combination:
        """All frames of equal budget at once; without an exact budget these are all frames."""
        assert features.attention is not None
        assert features.keys is not None
        num_frames, tokens_per_frame, _ = features.tokens.shape
        stop = stop_for(self.stop, features)
        scores = features.attention.float() if stop is None else stop.lowered(features.attention)
        sinks = None
        if stop is not None:
            sinks = rank_descending(stop.sink_scores(features.attention))[:NUM_SINKS]
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
                keys = take_frames(features.keys, own)
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
    """(T, R) bool, which of R left positions are targets: every `step`-th, in every frame."""
    step = max(1, num_rest // contextual)
    chosen = np.zeros((num_frames, num_rest), dtype=bool)
    chosen[:, : contextual * step : step] = True
    return chosen


def _moved_targets(
    even: NDArray[np.bool_], rest: NDArray[np.int64], sinks: NDArray[np.int64], stop: Stop
) -> NDArray[np.bool_]:
    """Targets on a sink move forward to the next position that is no sink, or stay if none is left.

    Args:
        even: (T, R) bool, the targets without sinks, equal in all frames.
        rest: (T, R) positions that are not dominant.
        sinks: Positions of sinks.
        stop: How the release's faults are followed.

    Returns:
        (T, R) bool, as many in every frame.
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
    """(T, n) columns of what is chosen in every row, equally many."""
    return np.nonzero(chosen)[1].reshape(len(chosen), -1)


def _contextual(
    keys: Tensor, rest: Tensor, numbers: Tensor, columns: Tensor, left: Tensor
) -> list[Terms]:
    """The mean of the tokens most similar to a target, and the target itself.

    Args:
        keys: (T, L, Dk) of some frames.
        rest: (T, R) positions in these frames that are not dominant.
        numbers: (T,) numbers of these frames in the clip.
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
