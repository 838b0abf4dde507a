"""Merge tokens into the anchors of their clusters, all clusters of a clip in one pass."""

from __future__ import annotations

from bisect import bisect_right

import torch
import torch.nn.functional as F
from torch import Tensor

COMPARED = 1024  # rows whose similarities to all anchors are held at once
HALF_ELEMENTS = 2**19  # elements converted to float32 at once: 2 MB, which fit the cache


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


def cluster_means(
    tokens: Tensor,
    labels: Tensor,
    num_clusters: int,
    *,
    sources: Tensor | None = None,
    members: Tensor | None = None,
) -> tuple[Tensor, Tensor]:
    """Average the rows with the same label, in a fixed order of summation.

    Args:
        tokens: (S, D), any float dtype; sums are float32.
        labels: (E,) int64 in [0, C).
        num_clusters: C.
        sources: (E,) int64 row of every entry; `None` if entry i is row i.
        members: (E,) bool, entries that take part; `None` for all.

    Returns:
        (C, D) float32 means, 0 for a cluster without members, and (C,) float32 counts.
    """
    weights, counts = mean_weights(labels, num_clusters, members)
    return cluster_sums(tokens, labels, num_clusters, weights, sources=sources), counts


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
    order, starts = _in_clusters(labels, num_clusters)
    rows = order if sources is None else sources[order]
    return gather_weighted(tokens, rows, starts, weights[order])


def _in_clusters(labels: Tensor, num_clusters: int) -> tuple[Tensor, Tensor]:
    """(E,) entries sorted by label, and (C + 1,) offsets: first entry of every label, then E."""
    order = labels.sort(stable=True)
    bounds = torch.arange(num_clusters + 1, device=labels.device)
    return order.indices, torch.searchsorted(order.values, bounds)


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
