"""The last step of methods that find what they keep in parts: one plan, positions ascending."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from tango_core.combination import Combination, Drawing
from tango_core.ops.frame_runs import FrameMeans
from tango_core.types import VisualFeatures

# Target of a term that goes nowhere: above every position.
NOWHERE = 2**62


@dataclass(frozen=True, eq=False)
class Terms:
    """Some kept tokens, and the weighted tokens that go into them.

    Attributes:
        kept: (k,) int64 flat positions t*H*W + h*W + w, in any order.
        targets: (n,) int64, the kept position every term goes into, or `NOWHERE`.
        sources: (n,) int64 flat positions that are read.
        weights: (n,) float32.
        num_nowhere: How many targets are `NOWHERE`, so that nobody has to ask the device.
    """

    kept: Tensor
    targets: Tensor
    sources: Tensor
    weights: Tensor
    num_nowhere: int = 0


def unchanged(positions: Tensor) -> Terms:
    """Terms that keep the tokens at (k,) positions as they are."""
    return Terms(positions, positions, positions, torch.ones_like(positions, dtype=torch.float32))


def over_frames(terms: Terms, num_frames: int, tokens_per_frame: int) -> Terms:
    """The same terms, each reading the mean of its position over F frames, its own the first."""
    if num_frames == 1:
        return terms
    steps = torch.arange(num_frames, device=terms.sources.device) * tokens_per_frame
    sources = terms.sources[:, None] + steps
    targets, weights = (
        part[:, None].expand_as(sources).flatten()
        for part in (terms.targets, terms.weights / num_frames)
    )
    return Terms(terms.kept, targets, sources.flatten(), weights, terms.num_nowhere * num_frames)


def in_order(
    features: VisualFeatures,
    parts: Sequence[Terms],
    drawing: Drawing | None = None,
    means: FrameMeans | None = None,
) -> Combination:
    """Put the parts together, ascending by position; nothing here waits for the device.

    Args:
        features: The clip that they come from.
        parts: No position is kept by two of them. Terms of one token are added up in their order
            here.
        drawing: For viewers.
        means: See `Combination`.
    """
    if len(parts) == 1 and parts[0].targets is parts[0].sources:
        # All unchanged: a selection.
        kept = parts[0].kept.sort().values
        offsets = sources = weights = None
    else:
        kept = torch.cat([part.kept for part in parts]).sort().values
        targets = torch.cat([part.targets for part in parts]).sort(stable=True)
        num_terms = len(targets.values) - sum(part.num_nowhere for part in parts)
        order = targets.indices[:num_terms]
        bounds = F.pad(kept, (0, 1), value=NOWHERE)
        offsets = torch.searchsorted(targets.values[:num_terms], bounds)
        sources = torch.cat([part.sources for part in parts])[order]
        weights = torch.cat([part.weights for part in parts])[order]
    return Combination(
        indices=kept,
        grid=(len(features.tokens), *features.grid),
        timestamps=features.timestamps,
        offsets=offsets,
        sources=sources,
        weights=weights,
        drawing=drawing,
        means=means,
    )
