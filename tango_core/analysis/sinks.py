"""Signals, sinks and activations of a vision tower over clips.

Sinks are positions that rank high in every frame of every clip. In each frame the L positions are
ranked by their score, from 1 for the most attended to L. Content moves, so the rank of an ordinary
position changes from clip to clip: its mean is near the middle and its spread wide (0.29 L if all
ranks are equally likely). A sink ranks high in every clip: its mean is close to 1 and its spread
small (Tango, Section 3 and Figure 3, which identify sinks by mean and spread of the rank). The rule
here: a position is a sink if its mean rank is at most `max_mean_rank` and the standard deviation of
its rank at most `max_spread`, both as shares of L. The publication has no thresholds; 0.1 for both
leaves a wide gap between sinks and ordinary positions.

`SignalProfile` is the publication's view of "attn" and "p-attn" (its Figures 2 and 3): sorted
within a frame both fall steeply, and averaged over clips p-attn lies in the middle of the frame and
attn on a few positions at its border, the sinks.

`ActivationStudy` compares activations: sinks of a tower carry a few very large ones (Sun et al.
2024 show the same for other networks). Measured per patch on the tower's own grid, because pooling
would mix a sink with its neighbours. Only sums per position are stored, so memory does not grow
with clips.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import asdict, dataclass
from typing import Any

import torch
from scipy.stats import rankdata
from torch import Tensor

from tango_core.errors import InputError
from tango_core.models.towers.trace import TowerTrace

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


# Ends of the band over clips, as shares of the clips.
BAND = (0.1, 0.9)


@dataclass(frozen=True, eq=False)
class SignalReport:
    """One signal over all clips. Signals of a frame are scaled to a mean of 1.

    Attributes:
        ranks: Mean rank and spread of every position, and which of them are sinks.
        by_rank: (L,) mean over clips of the signal at every rank, the largest first.
        low: (L,) lower end of the band over clips (`BAND`).
        high: (L,) upper end.
        mean_map: (L,) mean over all frames of the signal at every position.
    """

    ranks: SinkReport
    by_rank: Tensor
    low: Tensor
    high: Tensor
    mean_map: Tensor


class SignalProfile:
    """Collects one signal clip by clip; memory grows by L numbers per clip.

    Args:
        name: `"saliency"` ("p-attn") or `"attention"` ("attn").
    """

    def __init__(self, name: str) -> None:
        self.ranks = SinkCalibration(name)
        self._sorted: list[Tensor] = []
        self._sum = torch.zeros(1, dtype=torch.float64)  # broadcast by the first clip

    def add(self, scores: Tensor, grid: tuple[int, int]) -> None:
        """Add the frames of one clip.

        Args:
            scores: (T, L) not negative, a positive sum in every frame.
            grid: (H, W) with H * W = L.

        Raises:
            ValueError: If the grid differs from that of earlier clips, or scores are negative, not
                finite, or all 0 in a frame.
        """
        self.ranks.add(scores, grid)
        scores = scores.double().cpu()
        totals = scores.sum(dim=1, keepdim=True)
        if bool((scores < 0).any()) or not bool((totals > 0).all()):
            raise InputError(f"{self.ranks.score} of this clip has negative or empty frames")
        scaled = scores / totals * scores.shape[1]
        self._sum = self._sum + scaled.sum(dim=0)
        self._sorted.append(scaled.sort(dim=1, descending=True).values.mean(dim=0).float())

    def report(self) -> SignalReport:
        """Compute the report of all added clips.

        Raises:
            ValueError: If no clip was added.
        """
        ranks = self.ranks.report()
        clips = torch.stack(self._sorted).double()
        low, high = torch.quantile(clips, torch.tensor(BAND, dtype=torch.float64), dim=0)
        return SignalReport(ranks, clips.mean(dim=0), low, high, self._sum / ranks.num_frames)


STATISTICS = ("top 1", "top 2", "top 3", "top 1 %", "top 10 %", "top 25 %", "mean", "SD", "median")
"""Statistics of a patch's C absolute activations; "top 10 %" is their 90th percentile."""

# Number of positions that replace the sinks of a tower without sinks.
MOST_ATTENDED = 3


@dataclass(frozen=True, eq=False)
class ActivationReport:
    """Result of an `ActivationStudy`; means over frames.

    Attributes:
        ranks: Ranks of the patches by the attention they receive, and which of them are sinks.
        chosen: Positions of the first group: the sinks, or the `MOST_ATTENDED` positions if no
            position is a sink.
        norms: (layers + 1, P) norm of every patch after every layer.
        statistics: (measured layers, P, 9) `STATISTICS` of every patch.
    """

    ranks: SinkReport
    chosen: tuple[int, ...]
    norms: Tensor
    statistics: Tensor


class ActivationStudy:
    """Collects the activations of clips.

    Args:
        layers: Layers whose activations are measured; see `TowerTrace`.
    """

    def __init__(self, layers: Collection[int]) -> None:
        self.layers = tuple(sorted(set(layers)))
        self.ranks = SinkCalibration("attention")
        self._norms = torch.zeros(1, 1, dtype=torch.float64)  # broadcast by the first clip
        self._statistics = torch.zeros(1, 1, 1, dtype=torch.float64)  # per layer and position

    def add(self, trace: TowerTrace) -> None:
        """Add one clip.

        Raises:
            ValueError: If its grid differs from that of earlier clips, or values are not finite.
        """
        self.ranks.add(trace.attention, trace.grid)
        self._norms = self._norms + trace.norms.double().sum(dim=0).cpu()
        described = []
        for layer in self.layers:
            values = trace.hidden[layer].float().abs()
            if not bool(values.isfinite().all()):
                raise InputError(f"layer {layer} of this clip holds NaN or infinite values")
            described.append(describe(values).double().sum(dim=0))
        self._statistics = self._statistics + torch.stack(described).cpu()

    def report(self, rule: SinkRule | None = None) -> ActivationReport:
        """Determine the sinks and average over frames.

        Args:
            rule: Criterion for sinks.

        Raises:
            ValueError: If no clip was added, or all positions are sinks.
        """
        ranks = self.ranks.report(rule)
        total = len(ranks.rank_mean)
        if len(ranks.sinks) == total:
            raise InputError(f"all {total} positions are sinks, so there is no other to compare")
        by_rank = sorted(range(total), key=ranks.rank_mean.__getitem__)
        chosen = ranks.sinks or tuple(by_rank[:MOST_ATTENDED])
        frames = ranks.num_frames
        return ActivationReport(ranks, chosen, self._norms / frames, self._statistics / frames)


def describe(values: Tensor) -> Tensor:
    """(..., 9) `STATISTICS` of (..., C) absolute activations, float32.

    The standard deviation is the population one (divisor C); of an even number of values the median
    is the lower middle one.
    """
    ordered = values.sort(dim=-1, descending=True).values
    width = ordered.shape[-1]
    shares = [min(width, max(1, round(share * width))) - 1 for share in (0.01, 0.1, 0.25)]
    places = [min(place, width - 1) for place in (0, 1, 2)] + shares
    parts = [ordered[..., place] for place in places]
    parts += [values.mean(dim=-1), values.std(dim=-1, correction=0), ordered[..., width // 2]]
    return torch.stack(parts, dim=-1)
