"""Find attention sinks: positions that rank high in every frame of every clip.

In each frame the L positions are ranked by their score, from 1 for the most attended to L. Content
moves, so the rank of an ordinary position changes from clip to clip: its mean is near the middle
and its spread wide (0.29 L if all ranks are equally likely). A sink ranks high in every
clip: its mean is close to 1 and its spread small (Tango, Section 3 and Figure 3, which identify
sinks by mean and spread of the rank).

The rule here: a position is a sink if its mean rank is at most `max_mean_rank` and the standard
deviation of its rank at most `max_spread`, both as shares of L. The publication has no
thresholds; 0.1 for both leaves a wide gap between sinks and ordinary positions.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

import torch
from scipy.stats import rankdata
from torch import Tensor

from tango_core.errors import InputError

# Minimum number of clips; different content distinguishes a sink from an object that never moves.
FEWEST_CLIPS = 8


@dataclass(frozen=True)
class SinkRule:
    """Criterion for sinks.

    Attributes:
        max_mean_rank: Largest mean rank, as a share of the positions of a frame, in (0, 1].
        max_spread: Largest standard deviation of the rank, as a share of the positions, in (0, 1].
    """

    max_mean_rank: float = 0.1
    max_spread: float = 0.1

    def __post_init__(self) -> None:
        """Raise for shares that are not in (0, 1]."""
        for name in ("max_mean_rank", "max_spread"):
            if not 0 < getattr(self, name) <= 1:
                raise InputError(f"{name} must be in (0, 1], got {getattr(self, name)}")


@dataclass(frozen=True)
class SinkReport:
    """Result of a `SinkCalibration`.

    Attributes:
        grid: (H, W) of the tokens of a frame.
        sinks: Flat positions, best mean rank first.
        rank_mean: Mean rank of every position, 1 for the most attended.
        rank_spread: Standard deviation of every position's rank.
        num_clips: Number of clips.
        num_frames: Number of frames.
        score: The ranked signal, `"saliency"` or `"attention"`.
        rule: Criterion for sinks.
    """

    grid: tuple[int, int]
    sinks: tuple[int, ...]
    rank_mean: tuple[float, ...]
    rank_spread: tuple[float, ...]
    num_clips: int
    num_frames: int
    score: str
    rule: SinkRule

    def to_json(self, model: Mapping[str, str]) -> dict[str, Any]:
        """Content of the file that a recipe names as `model.sinks`.

        Args:
            model: `name`, and `digest` of the checkpoint.
        """
        return {
            "format_version": 1,
            "model": dict(model),
            "grid": list(self.grid),
            "sinks": list(self.sinks),
            "score": self.score,
            "rule": asdict(self.rule),
            "clips": self.num_clips,
            "frames": self.num_frames,
            "statistics": {
                "rank_mean": [round(value, 3) for value in self.rank_mean],
                "rank_spread": [round(value, 3) for value in self.rank_spread],
            },
        }


class SinkCalibration:
    """Collects the ranks of every position, clip by clip; memory does not grow with clips.

    Args:
        score: Name of the signal, for the report.
    """

    def __init__(self, score: str = "saliency") -> None:
        self.score = score
        self.grid: tuple[int, int] | None = None
        self.num_clips = 0
        self.num_frames = 0
        self._sum = torch.zeros(0, dtype=torch.float64)
        self._squares = torch.zeros(0, dtype=torch.float64)

    def add(self, scores: Tensor, grid: tuple[int, int]) -> None:
        """Add the frames of one clip.

        Args:
            scores: (T, L) score of every position, larger for more attention.
            grid: (H, W) with H * W = L.

        Raises:
            ValueError: If the grid differs from that of earlier clips, or scores are not finite.
        """
        if self.grid is None:
            self.grid = grid
            self._sum, self._squares = torch.zeros(2, grid[0] * grid[1], dtype=torch.float64)
        if grid != self.grid or scores.shape[1] != len(self._sum):
            raise InputError(
                f"sinks belong to one grid: this clip has {grid[0]} x {grid[1]} positions, earlier "
                f"ones {self.grid[0]} x {self.grid[1]}; choose clips of one size"
            )
        if not bool(scores.isfinite().all()):
            raise InputError(f"{self.score} of this clip holds NaN or infinite values")
        # Equal scores share their mean rank, so a frame of equal scores has no influence. Ranks are
        # centred, to avoid the subtraction of large squares later.
        ranks = torch.from_numpy(rankdata(-scores.float().cpu().numpy(), axis=1))
        ranks = ranks.double() - (len(self._sum) + 1) / 2
        self._sum += ranks.sum(dim=0)
        self._squares += ranks.square().sum(dim=0)
        self.num_clips += 1
        self.num_frames += len(ranks)

    def report(self, rule: SinkRule | None = None) -> SinkReport:
        """Apply the rule to all added clips.

        Raises:
            ValueError: If no clip was added.
        """
        if self.grid is None:
            raise InputError("no clip could be looked at, so there is nothing to find sinks in")
        rule = rule or SinkRule()
        total = len(self._sum)
        centred = self._sum / self.num_frames
        spread = (self._squares / self.num_frames - centred.square()).clamp(min=0).sqrt()
        mean = centred + (total + 1) / 2
        is_sink = (mean <= rule.max_mean_rank * total) & (spread <= rule.max_spread * total)
        found = [int(position) for position in is_sink.nonzero().flatten()]
        return SinkReport(
            grid=self.grid,
            sinks=tuple(sorted(found, key=lambda position: float(mean[position]))),
            rank_mean=tuple(mean.tolist()),
            rank_spread=tuple(spread.tolist()),
            num_clips=self.num_clips,
            num_frames=self.num_frames,
            score=self.score,
            rule=rule,
        )
