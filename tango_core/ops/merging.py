"""Merge tokens: weights of clusters, and weighted sums over clusters and over frames.

Methods that merge static regions weight one grid position equally in all frames of a segment. On a
CPU such a run is averaged first, and kept tokens are weighted sums of these averages. Runs depend
only on the map, so equal maps and tokens give equal bytes.
"""

from __future__ import annotations

from bisect import bisect_right
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from torch import Tensor

from tango_core.ops.transfer import upload_together

COMPARED = 1024  # rows whose similarities to all anchors are held at once
HALF_ELEMENTS = 2**19  # elements converted to float32 at once: 2 MB, which fit the cache
CELLS = 49  # grid positions per pass over a block's frames: more exceed the cache

Numbers = NDArray[np.int64]


def member_weights(labels: Tensor, centers: Tensor, members: Tensor, beta: float) -> Tensor:
    """Weights of the sum that merges the tokens of a cluster.

    A cluster of n tokens, centre included, becomes w * centre + (1 - w) * mean(all n) with
    w = max(1 / n, beta): the centre's total weight is w + (1 - w) / n, and 1 in a cluster of
    one token. beta = 0 is closest to the paper's plain average; the released code has no setting
    for it.

    Args:
        labels: (B, M) int64 cluster of every token, in [0, C).
        centers: (B, C) int64 position of every cluster's centre; entries equal to M are padding.
        members: (B, M) bool, tokens that take part.
        beta: In [0, 1].

    Returns:
        (B, M) float32; 0 outside `members`; the weights of a cluster add up to 1.
    """
    num_groups, num_points = labels.shape
    num_clusters = centers.shape[1]
    counts = cluster_sizes(labels.masked_fill(~members, num_clusters), num_clusters)
    counts = counts.clamp(min=1).float()
    own = (1 / counts).clamp(min=beta).masked_fill_(centers >= num_points, 0.0)
    weights = ((1 - own) / counts).gather(1, labels) * members
    padded = torch.cat([weights, weights.new_zeros(num_groups, 1)], dim=1)
    return padded.scatter_(1, centers, padded.gather(1, centers) + own)[:, :num_points]


def cluster_sizes(labels: Tensor, num_clusters: int) -> Tensor:
    """Count how often each of C labels occurs in every row of (..., M) int64 labels.

    Counts by sorting, because indexed addition on a GPU is not deterministic.

    Returns:
        (..., C) int64; labels of C or more are not counted.
    """
    bounds = torch.arange(num_clusters + 1, device=labels.device)
    bounds = bounds.expand(*labels.shape[:-1], -1).contiguous()
    return torch.searchsorted(labels.sort(dim=-1).values, bounds).diff(dim=-1)


def gather_weighted(tokens: Tensor, sources: Tensor, offsets: Tensor, weights: Tensor) -> Tensor:
    """Sum the weighted rows of every bag without copying the rows first.

    Args:
        tokens: (S, D), any float dtype; sums are float32.
        sources: (E,) int64 rows, those of one bag next to each other.
        offsets: (K + 1,) int64 first entry of every bag, and E.
        weights: (E,) float32.

    Returns:
        (K, D) float32.
    """
    if tokens.dtype == torch.float32 or tokens.device.type != "cpu":
        return _bags(tokens.float(), sources, offsets, weights)
    # Convert half-precision tokens in blocks; a float32 copy of the clip costs more than the sums.
    ends = offsets.tolist()
    sums = torch.empty(len(ends) - 1, tokens.shape[1])
    most = max(1, HALF_ELEMENTS // tokens.shape[1])
    first = 0
    while first < len(sums):
        # As many whole bags as fit, but at least one.
        last = max(first + 1, bisect_right(ends, ends[first] + most) - 1)
        part = slice(ends[first], ends[last])
        rows = tokens.index_select(0, sources[part]).float()
        local, starts = torch.arange(len(rows)), offsets[first : last + 1] - part.start
        sums[first:last] = _bags(rows, local, starts, weights[part])
        first = last
    return sums


def _bags(tokens: Tensor, sources: Tensor, offsets: Tensor, weights: Tensor) -> Tensor:
    """(K, D) sums of weighted rows of float32 tokens."""
    return F.embedding_bag(
        sources,
        tokens,
        offsets,
        mode="sum",
        per_sample_weights=weights,
        include_last_offset=True,
    )


def mean_weights(
    labels: Tensor, num_clusters: int, members: Tensor | None = None
) -> tuple[Tensor, Tensor]:
    """Weights whose sum per label is the plain average of its entries.

    Args:
        labels: (E,) int64 in [0, C).
        num_clusters: C.
        members: (E,) bool, entries that take part; `None` for all.

    Returns:
        (E,) float32 weights, 0 for entries outside `members`, and (C,) float32 counts.
    """
    counted = labels if members is None else labels.masked_fill(~members, num_clusters)
    counts = cluster_sizes(counted, num_clusters).float()
    weights = (1 / counts.clamp(min=1))[labels]
    return (weights if members is None else weights * members), counts


def cluster_means(tokens: Tensor, labels: Tensor, num_clusters: int) -> Tensor:
    """Average the rows with the same label, in a fixed order of summation.

    Args:
        tokens: (S, D), any float dtype; sums are float32.
        labels: (S,) int64 in [0, C).
        num_clusters: C.

    Returns:
        (C, D) float32 means, 0 for a cluster without members.
    """
    weights, _ = mean_weights(labels, num_clusters)
    return cluster_sums(tokens, labels, num_clusters, weights)


def cluster_sums(
    tokens: Tensor,
    labels: Tensor,
    num_clusters: int,
    weights: Tensor,
    *,
    sources: Tensor | None = None,
) -> Tensor:
    """Sum the weighted rows with the same label, in a fixed order.

    Args:
        tokens: (S, D), any float dtype; sums are float32.
        labels: (E,) int64 in [0, C).
        num_clusters: C.
        weights: (E,) float32.
        sources: (E,) int64 row of every entry; `None` if entry i is row i.

    Returns:
        (C, D) float32 sums, 0 for a cluster without members.
    """
    in_order = labels.sort(stable=True)
    order, bounds = in_order.indices, torch.arange(num_clusters + 1, device=labels.device)
    rows = order if sources is None else sources[order]
    starts = torch.searchsorted(in_order.values, bounds)
    return gather_weighted(tokens, rows, starts, weights[order])


def most_similar(tokens: Tensor, rows: Tensor, anchors: Tensor) -> Tensor:
    """Find for every given row the anchor with the highest cosine.

    The length of a row does not affect its ranking of anchors, so only anchors are normalised. The
    full similarity matrix is never materialised.

    Args:
        tokens: (S, D), any float dtype; compared in float32.
        rows: (P,) int64.
        anchors: (A,) int64, A at least 1.

    Returns:
        (P,) int64 in [0, A); the first of equally similar anchors.
    """
    units = F.normalize(tokens.index_select(0, anchors).float(), dim=-1)
    nearest = torch.empty_like(rows)
    for start in range(0, len(rows), COMPARED):
        part = slice(start, start + COMPARED)
        similarity = tokens.index_select(0, rows[part]).float() @ units.mT
        torch.argmax(similarity, dim=-1, out=nearest[part])
    return nearest


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
