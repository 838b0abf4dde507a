"""Distribution of a signal over tokens and grid positions.

The publication's view of "attn" and "p-attn" (Tango, Section 3 and its Figures 2 and 3): sorted
within a frame both fall steeply, and averaged over clips p-attn lies in the middle of the frame and
attn on a few positions at its border, the sinks.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from tango_core.analysis.sinks import SinkCalibration, SinkReport
from tango_core.errors import InputError

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
