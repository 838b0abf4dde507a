"""Compare activations of sinks and of other patches, and norms over the layers.

Sinks of a tower carry a few very large activations (Tango, Section 3; Sun et al. 2024 show the same
for other networks). Measured per patch on the tower's own grid, because pooling would mix a
sink with its neighbours.

Only sums per position are stored, so memory does not grow with clips. Sinks are determined at the
end, from the attention of the same frames.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass

import torch
from torch import Tensor

from tango_core.analysis.sinks import SinkCalibration, SinkReport, SinkRule
from tango_core.errors import InputError
from tango_core.models.towers.trace import TowerTrace

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
