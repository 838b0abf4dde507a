"""Coverage: how well kept tokens represent all tokens of a clip, without a language model.

Coverage of a token is its cosine to the nearest kept token anywhere in the clip: 1 for a token kept
unchanged. Kept tokens are compared as they enter the language model, after merging. It costs a
matrix product per clip and method, so retentions can be compared before any question is answered;
how well it predicts accuracy is measured in
`jobs/recipes/shapes_analysis/README.md`.
"""

from __future__ import annotations

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


class CoverageTotals:
    """Sums over clips of one method.

    Attributes:
        kept: Number of kept tokens of all clips.
        total: Number of tokens of all clips.
    """

    def __init__(self) -> None:
        self.kept = self.total = 0
        # Mean, mean of the worst `TAIL`, and lowest cosine per clip.
        self._clips: list[tuple[float, float, float]] = []
        # (frames, 3) part of the clip, mean and lowest cosine per clip.
        self._frames: list[Tensor] = []
        # Per grid (L,) sums over frames, (L,) lowest cosines, number of frames.
        self._places: dict[tuple[int, int], tuple[Tensor, Tensor, int]] = {}

    def add(self, cosines: Tensor, num_kept: int, grid: tuple[int, int]) -> None:
        """Add one clip.

        Args:
            cosines: (T, L) from `nearest_kept`.
            num_kept: Number of kept tokens of the clip.
            grid: (H, W) with H * W = L.
        """
        cosines = cosines.cpu().double()
        num_frames = len(cosines)
        self.kept += num_kept
        self.total += cosines.numel()
        tail = cosines.flatten().topk(max(1, round(TAIL * cosines.numel())), largest=False).values
        self._clips.append((float(cosines.mean()), float(tail.mean()), float(cosines.min())))
        part = torch.arange(num_frames) * TIME_PARTS // num_frames
        self._frames.append(torch.stack([part, cosines.mean(dim=1), cosines.amin(dim=1)], dim=1))
        worst = cosines.amin(dim=0)
        sums, lowest, frames = self._places.get(grid, (torch.zeros_like(worst), worst, 0))
        lowest = torch.minimum(lowest, worst)
        self._places[grid] = sums + cosines.sum(dim=0), lowest, frames + num_frames

    @property
    def retention(self) -> float:
        """Actual share of kept tokens, in (0, 1]."""
        return self.kept / self.total

    @property
    def means(self) -> tuple[float, float, float]:
        """Means over clips of the mean cosine, of its worst tokens (`TAIL`), of its worst token."""
        mean, tail, worst = torch.tensor(self._clips, dtype=torch.float64).mean(dim=0).tolist()
        return mean, tail, worst

    @property
    def by_time(self) -> list[tuple[int, float, float]]:
        """(part of the clip, mean cosine, worst cosine) per part that has frames."""
        frames = torch.cat(self._frames)
        parts = [frames[frames[:, 0] == part] for part in range(TIME_PARTS)]
        return [
            (part, float(own[:, 1].mean()), float(own[:, 2].min()))
            for part, own in enumerate(parts)
            if len(own)
        ]

    @property
    def by_place(self) -> tuple[tuple[int, int], Tensor, Tensor]:
        """The most frequent grid, and its (H, W) mean and worst cosines."""
        grid = max(self._places, key=lambda one: self._places[one][2])
        sums, worst, frames = self._places[grid]
        return grid, (sums / frames).view(grid), worst.view(grid)
