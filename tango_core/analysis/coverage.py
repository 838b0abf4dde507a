"""Coverage: how well kept tokens represent all tokens of a clip, without a language model.

Coverage of a token is its cosine to the nearest kept token anywhere in the clip: 1 for a token kept
unchanged. Kept tokens are compared as they enter the language model, after merging. It costs a
matrix product per clip and method, so retentions can be compared before any question is answered;
how well it predicts accuracy is measured in
`jobs/recipes/shapes_analysis/README.md`.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import torch
import torch.nn.functional as F
from torch import Tensor

from tango_core.types import CompressedVideo

# Number of tokens that are compared with all kept tokens at once.
_AT_ONCE = 4096
# Share of a clip's worst tokens whose mean cosine is reported.
TAIL = 0.05
# Number of parts into which a clip is divided.
TIME_PARTS = 8


def nearest_kept(tokens: Tensor, video: CompressedVideo) -> Tensor:
    """(T, L) float32 cosine of every token to the nearest kept token, in [-1, 1].

    Args:
        tokens: (T, L, D) all tokens of the clip, any float dtype.
        video: Kept tokens of the clip, at least one.

    Raises:
        ValueError: If nothing is kept.
    """
    if not video.num_kept:
        raise ValueError("no token is kept, so there is none to compare with")
    kept = F.normalize(video.tokens.float(), dim=-1).T.contiguous()
    flat = tokens.flatten(0, 1)
    found = [
        (F.normalize(flat[start : start + _AT_ONCE].float(), dim=-1) @ kept).amax(dim=-1)
        for start in range(0, len(flat), _AT_ONCE)
    ]
    return torch.cat(found).clamp(-1, 1).view(tokens.shape[:2])


@dataclass
class CoverageTotals:
    """Sums over clips of one method.

    Attributes:
        num_clips: Number of added clips.
        kept: Number of kept tokens of all clips.
        total: Number of tokens of all clips.
        means: Mean cosine of every clip.
        tails: Mean cosine of the worst `TAIL` of every clip's tokens.
        worsts: Lowest cosine of every clip.
        places: Per grid, (L,) sums over frames and clips, (L,) lowest cosines, number of frames.
        times: (TIME_PARTS,) sums and numbers of the frames' mean cosines by part of the clip.
        worst_times: (TIME_PARTS,) lowest cosine by part of the clip.
    """

    num_clips: int = 0
    kept: int = 0
    total: int = 0
    means: list[float] = field(default_factory=list)
    tails: list[float] = field(default_factory=list)
    worsts: list[float] = field(default_factory=list)
    places: dict[tuple[int, int], tuple[Tensor, Tensor, int]] = field(default_factory=dict)
    times: Tensor = field(default_factory=lambda: torch.zeros(2, TIME_PARTS, dtype=torch.float64))
    worst_times: Tensor = field(default_factory=lambda: torch.ones(TIME_PARTS))

    def add(self, cosines: Tensor, num_kept: int, grid: tuple[int, int]) -> None:
        """Add one clip.

        Args:
            cosines: (T, L) from `nearest_kept`.
            num_kept: Number of kept tokens of the clip.
            grid: (H, W) with H * W = L.
        """
        cosines = cosines.cpu()
        num_frames = len(cosines)
        self.num_clips += 1
        self.kept += num_kept
        self.total += cosines.numel()
        tail = max(1, round(TAIL * cosines.numel()))
        self.means.append(float(cosines.mean(dtype=torch.float64)))
        self.tails.append(float(cosines.flatten().topk(tail, largest=False).values.mean()))
        self.worsts.append(float(cosines.min()))
        sums, worst, frames = self.places.get(
            grid, (torch.zeros(cosines.shape[1], dtype=torch.float64), cosines[0], 0)
        )
        self.places[grid] = (
            sums + cosines.sum(dim=0, dtype=torch.float64),
            torch.minimum(worst, cosines.amin(dim=0)),
            frames + num_frames,
        )
        part = torch.arange(num_frames) * TIME_PARTS // num_frames
        self.times[0].index_add_(0, part, cosines.mean(dim=1, dtype=torch.float64))
        self.times[1].index_add_(0, part, torch.ones(num_frames, dtype=torch.float64))
        self.worst_times.scatter_reduce_(0, part, cosines.amin(dim=1), reduce="amin")

    @property
    def retention(self) -> float:
        """Actual share of kept tokens, in (0, 1]."""
        return self.kept / self.total

    @property
    def mean(self) -> float:
        """Mean cosine of a token to the nearest kept token, averaged over clips."""
        return sum(self.means) / self.num_clips

    @property
    def tail(self) -> float:
        """Mean over clips of the mean cosine of their worst tokens (`TAIL`)."""
        return sum(self.tails) / self.num_clips

    @property
    def worst(self) -> float:
        """Mean over clips of the cosine of their worst token."""
        return sum(self.worsts) / self.num_clips

    @property
    def by_time(self) -> list[tuple[int, float, float]]:
        """(part of the clip, mean cosine, worst cosine) per part that has frames."""
        sums, numbers = self.times
        return [
            (part, float(sums[part] / numbers[part]), float(self.worst_times[part]))
            for part in range(TIME_PARTS)
            if numbers[part]
        ]

    @property
    def by_place(self) -> tuple[tuple[int, int], Tensor, Tensor]:
        """The most frequent grid, and its (H, W) mean and worst cosines."""
        grid = max(self.places, key=lambda one: self.places[one][2])
        sums, worst, frames = self.places[grid]
        return grid, (sums / frames).view(grid), worst.view(grid)
