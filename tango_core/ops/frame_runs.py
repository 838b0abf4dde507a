"""Weighted sums of tokens at one position over consecutive frames.

Methods that merge static regions weight one grid position equally in all frames of a segment. On a
CPU such a run is averaged first, and kept tokens are weighted sums of these averages. Runs depend
only on the map, so equal maps and tokens give equal bytes.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from tango_core.ops.merging import gather_weighted
from tango_core.ops.transfer import upload_together

Numbers = NDArray[np.int64]

CELLS = 49  # grid positions per pass over a block's frames: more exceed the cache


@dataclass(frozen=True, eq=False)
class FrameRuns:
    """The runs of a sparse map, in the map's order; a single token is a run of length 1.

    Attributes:
        starts: (R,) int64 flat positions of the first tokens.
        lengths: (R,) int64 frames, at least 1.
        weights: (R,) float32 weight of every token of the run.
        offsets: (K + 1,) int64 first run of every kept token, and R.
        step: L, the offset to the token at the same grid position in the next frame.
    """

    starts: Numbers
    lengths: Numbers
    weights: NDArray[np.float32]
    offsets: Numbers
    step: int

    def combine(self, tokens: Tensor) -> Tensor:
        """Compute the kept tokens as weighted sums over the runs.

        Args:
            tokens: (T * L, D) on a CPU, any float dtype.

        Returns:
            (K, D) float32.
        """
        is_long = self.lengths > 1
        if is_long.all() and (np.diff(self.offsets) == 1).all():
            return self._averages(tokens)
        before = np.append(0, is_long.cumsum())[self.offsets]
        starts, lengths, weights = self.starts[is_long], self.lengths[is_long], self.weights
        single = torch.from_numpy(self.starts[~is_long])
        own = torch.from_numpy(weights[~is_long])
        sums = gather_weighted(tokens, single, torch.from_numpy(self.offsets - before), own)
        order = np.argsort(starts)
        rows = torch.from_numpy(np.argsort(order))
        means = frame_means(tokens, starts[order], lengths[order], self.step)
        kept = np.flatnonzero(np.diff(before))
        offsets = torch.from_numpy(np.append(before[kept], len(rows)))
        shares = torch.from_numpy(weights[is_long] * lengths.astype(np.float32))
        merged = gather_weighted(means, rows, offsets, shares)
        return sums.index_add_(0, torch.from_numpy(kept), merged)

    def _averages(self, tokens: Tensor) -> Tensor:
        """(K, D) kept tokens that are one run each, computed in blocks of adjacent positions."""
        frames = tokens.view(-1, self.step, tokens.shape[1])
        begins = np.ones(len(self.starts), dtype=bool)
        begins[1:] = (
            (np.diff(self.starts) != 1)
            | (self.starts[1:] % self.step == 0)
            | (np.diff(self.lengths) != 0)
            | (np.diff(self.weights) != 0)
        )
        sums = torch.empty(len(self.starts), tokens.shape[1])
        bounds = [*np.flatnonzero(begins).tolist(), len(self.starts)]
        for first, last in pairwise(bounds):
            frame, cell = divmod(int(self.starts[first]), self.step)
            block = frames[frame : frame + int(self.lengths[first])]
            for at in range(first, last, CELLS):
                out = sums[at : min(at + CELLS, last)]
                place = cell + at - first
                torch.sum(block[:, place : place + len(out)], dim=0, dtype=torch.float32, out=out)
                out.mul_(float(self.weights[first]))
        return sums


def find_runs(sources: Tensor, offsets: Tensor, weights: Tensor, step: int) -> FrameRuns | None:
    """Find the runs of a sparse map on the host, if runs are at most three quarters of its terms.

    Args:
        sources: (N,) int64 flat positions.
        offsets: (K + 1,) int64 first source of every kept token, and N.
        weights: (N,) float32.
        step: L.

    Returns:
        The runs; `None` if adding the terms one by one is faster.
    """
    places, values, bags = sources.numpy(), weights.numpy(), offsets.numpy()
    begins = np.ones(len(places), dtype=bool)
    begins[1:] = (np.diff(places) != step) | (values[1:] != values[:-1])
    begins[bags[bags < len(places)]] = True
    first = np.flatnonzero(begins)
    if 4 * len(first) > 3 * len(places):
        return None
    return FrameRuns(
        places[first],
        np.diff(first, append=len(places)),
        values[first],
        np.searchsorted(first, bags),
        step,
    )


def frame_means(tokens: Tensor, starts: Numbers, lengths: Numbers, step: int) -> Tensor:
    """Average grid positions over frames without copying the tokens first.

    Args:
        tokens: (T * L, D), any float dtype, on any device.
        starts: (R,) int64 flat position of every run's first token.
        lengths: (R,) int64 number of frames of every run.
        step: L.

    Returns:
        (R, D) float32.
    """
    offsets = np.append(0, lengths.cumsum())
    within = np.arange(offsets[-1]) - np.repeat(offsets[:-1], lengths)
    sources = np.repeat(starts, lengths) + within * step
    places, ends, counts = upload_together(
        [sources, offsets, np.repeat(lengths, lengths)], tokens.device
    )
    return gather_weighted(tokens, places, ends, 1 / counts)
