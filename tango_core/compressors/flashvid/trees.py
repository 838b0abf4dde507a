"""FlashVID's second step (TSTM): trees of like tokens over frames, then clusters in every frame.

Every token that was not chosen links to its most similar token of the previous frame, wherever
that is; a tree becomes the mean of its tokens, at its earliest frame. Similarities are made frame
pair by frame pair, so only one L x L matrix is held.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from tango_core.compressors.flashvid.budgets import Counts
from tango_core.compressors.terms import NOWHERE, Terms
from tango_core.ops.clustering import assign_to_centers, density_peaks, products_to_distances
from tango_core.ops.merging import cluster_sums, mean_weights
from tango_core.ops.products import cross_products, write_products

NUM_NEIGHBORS = 7
# Similarity of what may not be linked.
NEVER = -1.0
LEAST = NEVER + 1e-6


@dataclass(frozen=True)
class Trees:
    """Which tokens belong together.

    Attributes:
        root: (T * L,) int64 flat position of every token's root; its own where it is one.
        is_root: (T, L) bool, roots that are not chosen tokens.
        counts: (T * L,) int64 tokens of the tree of every root, 1 elsewhere.
        children: (T * L,) int64 tokens linked directly to every token.
    """

    root: NDArray[np.int64]
    is_root: NDArray[np.bool_]
    counts: NDArray[np.int64]
    children: NDArray[np.int64]


def best_links(
    tokens: Tensor, norms: Tensor, chosen: Tensor, starts: list[int]
) -> tuple[Tensor, Tensor]:
    """Most similar token of the previous frame, for every token.

    Args:
        tokens: (T, L, D), any float dtype; computed in float32.
        norms: (T, L) float32 lengths of the tokens.
        chosen: (T, L) bool, tokens that take no part.
        starts: First frames of the segments, which link to nothing.

    Returns:
        (T, L) float32 cosines, -1 where there is no partner, and (T, L) int64 positions in the
        previous frame.
    """
    best = torch.full_like(norms, NEVER)
    parents = torch.zeros(chosen.shape, dtype=torch.int64, device=chosen.device)
    firsts, before = {*starts, len(tokens)}, None
    inverse = norms.clamp(min=1e-12).reciprocal()
    for frame in range(len(tokens)):
        if frame in firsts and frame + 1 in firsts:
            continue  # a scene of one frame
        current = tokens[frame].float()
        if before is not None and frame not in firsts:
            similarity = cross_products(current, before)
            similarity *= inverse[frame - 1]
            similarity *= inverse[frame, :, None]
            similarity.masked_fill_(chosen[frame - 1], NEVER)
            torch.max(similarity, dim=1, out=(best[frame], parents[frame]))
        before = current
    return best.masked_fill_(chosen, NEVER), parents


def grow_trees(
    best: NDArray[np.float32],
    parents: NDArray[np.int64],
    chosen: NDArray[np.bool_],
    lengths: list[int],
    totals: list[int],
    tau: float,
) -> Trees:
    """Link what is similar, but leave a segment as many roots as its budget asks for.

    Args:
        best: (T, L) cosine with the most similar token of the previous frame, -1 for none.
        parents: (T, L) that token's position.
        chosen: (T, L) tokens that take no part.
        lengths: Frames of every segment.
        totals: Tokens of every segment's budget, chosen ones included.
        tau: Cosine above which tokens are linked.
    """
    num_frames, tokens_per_frame = best.shape
    linked = np.zeros_like(chosen)
    start = 0
    for length, total in zip(lengths, totals, strict=True):
        own = best[start : start + length]
        links = own > tau
        if own.size - links.sum() < total:
            links = own > _threshold(own, own.size - total)
        linked[start : start + length] = links
        start += length
    flat = np.arange(num_frames * tokens_per_frame).reshape(num_frames, tokens_per_frame)
    above = flat[np.maximum(np.arange(num_frames) - 1, 0)]
    parent = np.where(linked, np.take_along_axis(above, parents, axis=1), flat)
    root = parent.copy()
    for frame in range(1, num_frames):
        # The frame before already points to its roots.
        root[frame] = np.where(linked[frame], root.reshape(-1)[parent[frame]], flat[frame])
    size = num_frames * tokens_per_frame
    counts = np.bincount(root.reshape(-1), minlength=size).clip(min=1)
    children = np.bincount(parent[linked], minlength=size)
    return Trees(root.reshape(-1), ~linked & ~chosen, counts, children)


def _threshold(values: NDArray[np.float32], rank: int) -> float:
    """The value of a rank, from 1 for the largest; above all of them for rank 0."""
    if rank <= 0:
        return np.inf
    largest = np.partition(values.reshape(-1), values.size - rank)[values.size - rank]
    return max(float(largest), LEAST)


def tree_terms(trees: Trees, device: torch.device, *, official: bool) -> Terms:
    """Every tree as one token at its root, by position.

    Args:
        trees: Of the clip.
        device: Where to put the terms.
        official: Divide a tree's sum by 1 + the children of its root, as released, instead of by
            its tokens.
    """
    is_root = trees.is_root.reshape(-1)
    members = np.flatnonzero(is_root[trees.root])
    roots = trees.root[members]
    divisor = 1 + trees.children if official else trees.counts
    weights = (1 / divisor)[roots].astype(np.float32)
    parts = (np.flatnonzero(is_root), roots, members, weights)
    kept, targets, sources, shares = (torch.from_numpy(part).to(device) for part in parts)
    return Terms(kept, targets, sources, shares)


def cluster_trees(tokens: Tensor, trees: Trees, wanted: Counts, *, official: bool) -> Terms:
    """Cluster the trees of every frame by density; a cluster is the plain mean of its trees.

    Args:
        tokens: (T * L, D), any float dtype.
        trees: Of the clip.
        wanted: (T,) clusters of every frame, at most its roots.
        official: As for `tree_terms`.
    """
    terms = tree_terms(trees, tokens.device, official=official)
    roots = terms.kept
    numbers = torch.searchsorted(roots, terms.targets)
    points = cluster_sums(tokens, numbers, len(roots), terms.weights, sources=terms.sources)
    # Of every root the one it is merged into, and its share there.
    into, shares = roots.clone(), torch.ones_like(roots, dtype=torch.float32)
    kept, num_nowhere, start = [roots[:0]], 0, 0
    for frame, count in enumerate(wanted.tolist()):
        num_roots = int(trees.is_root[frame].sum())
        own = slice(start, start + num_roots)
        start += num_roots
        if count == num_roots:
            kept.append(roots[own])
        elif count:
            centers, labels = _cluster(points[None, own], count)
            kept.append(roots[own][centers[0]])
            into[own] = kept[-1][labels[0]]
            shares[own], _ = mean_weights(labels[0], count)
        else:
            into[own] = NOWHERE
            sizes = trees.counts.reshape(trees.is_root.shape)[frame]
            num_nowhere += int(sizes[trees.is_root[frame]].sum())
    return Terms(
        torch.cat(kept),
        into[numbers],
        terms.sources,
        terms.weights * shares[numbers],
        num_nowhere=num_nowhere,
    )


def _cluster(points: Tensor, count: int) -> tuple[Tensor, Tensor]:
    """(B, C) centres of (B, M, D) points by descending score, and (B, M) clusters."""
    distances = points.new_empty(*points.shape[:2], points.shape[1])
    write_products(points, distances)
    products_to_distances(distances)
    distances /= points.shape[2]
    neighbors = min(count, NUM_NEIGHBORS)
    centers = density_peaks(distances, count, neighbors, include_self=True)
    return centers, assign_to_centers(distances, centers)
