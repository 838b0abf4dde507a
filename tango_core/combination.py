"""A compressor's result as a sparse linear map of the clip's tokens.

A `Combination` names the tokens that are kept, and the tokens and weights each is made of. It is
a few kilobytes where the tokens are megabytes, holds for every tensor with one row per token, and
gives the same bytes whenever it is applied to the same tokens: `Compressor.compress` and readers of
stored plans use the one kernel here.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import torch
import torch.nn.functional as F

from tango_core.ops.merging import find_runs, gather_weighted
from tango_core.types import CompressedVideo, VisualFeatures

if TYPE_CHECKING:
    from torch import Tensor


@dataclass(frozen=True, eq=False)
class Drawing:
    """Additional data for the viewer; it does not affect tokens.

    Attributes:
        segments: Frames of every segment in order, adding up to T; empty for methods without
            segments.
        static: (T, L) bool, cells that the method averages over their segment's frames; `None` for
            methods without static cells.
        saliency: (T, L) uint8 score by which the method ranks tokens, as the encoder gave it: 0 for
            the lowest of the clip, 255 for the highest; `None` for methods that rank by none.
        saliency_range: (2,) float32, the scores that 0 and 255 stand for; `None` with `saliency`.
    """

    segments: tuple[int, ...] = ()
    static: Tensor | None = None
    saliency: Tensor | None = None
    saliency_range: Tensor | None = None

    def with_saliency(self, scores: Tensor) -> Drawing:
        """The drawing with (T, L) scores, any float dtype, in 8 bits."""
        scores = scores.float()
        bounds = torch.stack(scores.aminmax())
        steps = (scores - bounds[0]) * (255 / (bounds[1] - bounds[0]).clamp(min=1e-38))
        levels = steps.clamp(0, 255).round().to(torch.uint8)
        return replace(self, saliency=levels, saliency_range=bounds)


@dataclass(frozen=True, eq=False)
class Combination:
    """Kept tokens of one clip, each a weighted sum of the clip's tokens.

    Attributes:
        indices: (K,) int64, ascending and unique; flat position t * H * W + h * W + w of every kept
            token, as in `CompressedVideo`.
        grid: (T, H, W) of the clip.
        timestamps: (T,) float64 seconds.
        offsets: (K + 1,) int64, from 0 to N and not descending: kept token k is the weighted sum of
            `sources[offsets[k] : offsets[k + 1]]`. `None` if tokens are kept unchanged;
            `sources` and `weights` are then `None` too.
        sources: (N,) int64 flat positions of the tokens that are read.
        weights: (N,) float32.
        drawing: Data for the viewer; `None` if not requested.
    """

    indices: Tensor
    grid: tuple[int, int, int]
    timestamps: Tensor
    offsets: Tensor | None = None
    sources: Tensor | None = None
    weights: Tensor | None = None
    drawing: Drawing | None = None

    def __post_init__(self) -> None:
        """Check that the parts fit together; positions are checked when the map is applied."""
        parts = [self.indices, self.timestamps, self.offsets, self.sources, self.weights]
        shapes = [None if part is None else tuple(part.shape) for part in parts]
        num_kept, terms = len(self.indices), shapes[3]
        merged = [None] * 3 if terms is None else [(num_kept + 1,), terms, terms]
        if shapes != [(num_kept,), (self.grid[0],), *merged]:
            raise ValueError(
                "indices (K,), timestamps (T,), offsets (K + 1,), sources and weights (N,) do not "
                f"fit: got {', '.join(map(str, shapes))} for T = {self.grid[0]}"
            )

    @property
    def num_total(self) -> int:
        """Tokens of the clip, T * H * W."""
        return self.grid[0] * self.grid[1] * self.grid[2]

    @property
    def num_kept(self) -> int:
        """Tokens that are kept, K."""
        return len(self.indices)

    @property
    def is_selection(self) -> bool:
        """Whether all kept tokens are unchanged."""
        return self.offsets is None

    def combine(self, rows: Tensor) -> Tensor:
        """Apply the map to any tensor with one row per token of the clip.

        Sums are float32 and always made in the order that follows from the plan, so equal rows give
        equal bytes.

        Args:
            rows: (T, L, D) or (T * L, D), any float dtype: the clip's tokens or companions
                (DeepStack).

        Returns:
            (K, D) in the dtype and on the device of `rows`; never a view of it.

        Raises:
            ValueError: If there are more or fewer rows than tokens.
        """
        flat = rows.reshape(-1, rows.shape[-1])
        if len(flat) != self.num_total:
            raise ValueError(
                f"the clip of this plan has {self.num_total} tokens on grid {self.grid}, "
                f"got {len(flat)} rows"
            )
        if self.offsets is None or self.sources is None or self.weights is None:
            # On a CPU three times as fast as the same rows by [indices].
            return flat.index_select(0, self.indices.to(flat.device))
        offsets, sources, weights = (
            part.to(flat.device) for part in (self.offsets, self.sources, self.weights)
        )
        if flat.device.type == "cpu":
            runs = find_runs(sources, offsets, weights, self.grid[1] * self.grid[2])
            if runs is not None:
                return runs.combine(flat).to(rows.dtype)
        return gather_weighted(flat, sources, offsets, weights).to(rows.dtype)

    def companions(self, rows: Tensor | None, *, anchored: bool = False) -> Tensor | None:
        """Companion rows of the kept tokens.

        Args:
            rows: (T, L, E, D) or (T * L, E, D), see `VisualFeatures`; `None` for none.
            anchored: Take those of the token at each kept position, also where tokens are merged.

        Returns:
            (K, E, D), as `combine`; `None` for none.
        """
        if rows is None:
            return None
        extra, width = rows.shape[-2:]
        flat = rows.reshape(-1, extra * width)
        if anchored:
            kept = flat.index_select(0, self.indices.to(flat.device))
        else:
            kept = self.combine(flat)
        return kept.view(-1, extra, width)

    def apply(
        self, tokens: Tensor, companions: Tensor | None = None, *, anchored: bool = False
    ) -> CompressedVideo:
        """Compute the kept tokens.

        Args:
            tokens: (T, L, D) or (T * L, D) of the clip that the plan was made for.
            companions: (..., E, D) of the same clip; see `VisualFeatures`.
            anchored: See `companions`.

        Returns:
            K tokens in the dtype and on the device of `tokens`.

        Raises:
            ValueError: If there are more or fewer tokens than the clip has, or the kept positions
                are not ascending, unique and in range.
        """
        return CompressedVideo(
            tokens=self.combine(tokens),
            indices=self.indices.to(tokens.device),
            grid=self.grid,
            timestamps=self.timestamps,
            companions=self.companions(companions, anchored=anchored),
        )


# Target of an unused term; larger than every position.
NOWHERE = 2**62


@dataclass(frozen=True, eq=False)
class Terms:
    """Some kept tokens, and the weighted terms that are added to them.

    Attributes:
        kept: (k,) int64 flat positions t*H*W + h*W + w, in any order.
        targets: (n,) int64, the kept position every term goes into, or `NOWHERE`.
        sources: (n,) int64 flat positions that are read.
        weights: (n,) float32.
        num_nowhere: Number of targets that are `NOWHERE`, known without reading the device.
    """

    kept: Tensor
    targets: Tensor
    sources: Tensor
    weights: Tensor
    num_nowhere: int = 0


def unchanged(positions: Tensor) -> Terms:
    """Terms that keep the tokens at (k,) positions unchanged."""
    return Terms(positions, positions, positions, torch.ones_like(positions, dtype=torch.float32))


def over_frames(terms: Terms, num_frames: int, tokens_per_frame: int) -> Terms:
    """Replace the source of every term by the mean of its position over F consecutive frames.

    Args:
        terms: Terms whose sources are in the first of the F frames.
        num_frames: F, at least 1.
        tokens_per_frame: L.
    """
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
) -> Combination:
    """Combine parts into a `Combination`, ascending by position, without device synchronisation.

    Args:
        features: The clip's features.
        parts: Parts that keep disjoint positions. Terms of one token are summed in this order.
        drawing: Data for the viewer.
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
    )
