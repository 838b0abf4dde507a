"""FlashVID's second step (TSTM): trees of like tokens over frames, then clusters in every frame.

Every token that was not chosen links to its most similar token of the previous frame, wherever
that is; a tree becomes the mean of its tokens, at its earliest frame. Similarities are made frame
pair by frame pair, so only one L x L matrix is held.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from torch import Tensor

from tango_core.combination import NOWHERE, Terms
from tango_core.compressors.flashvid.budgets import Counts
from tango_core.ops.blocks import row_blocks
from tango_core.ops.clustering import assign_to_centers, density_peaks, products_to_distances
from tango_core.ops.merging import cluster_sums, mean_weights
from tango_core.ops.products import cross_products, write_products
from tango_core.ops.transfer import upload, upload_together

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
    tokens: Tensor, norms: Tensor, chosen: Tensor, cuts: Tensor
) -> tuple[Tensor, Tensor]:
    """Most similar token of the previous frame, for every token.

    Args:
        tokens: (T, L, D), any float dtype; computed in float32.
        norms: (T, L) float32 lengths of the tokens.
        chosen: (T, L) bool, tokens that take no part.
        cuts: (T - 1,) bool, whether a segment ends with frame i: the next links to nothing.

    Returns:
        (T, L) float32 cosines, -1 where there is no partner, and (T, L) int64 positions in the
        previous frame.
    """
    best = torch.full_like(norms, NEVER)
    parents = torch.zeros(chosen.shape, dtype=torch.int64, device=chosen.device)
    inverse = norms.clamp(min=1e-12).reciprocal()
    if tokens.device.type != "cpu":
        # All pairs of frames: asking where the cuts are would take longer.
        for pairs in row_blocks(len(tokens) - 1, tokens[0].numel(), tokens.device):
            both = tokens[pairs.start : pairs.stop + 1].float()
            lengths = inverse[pairs.start : pairs.stop + 1]
            similarity = both[1:] @ both[:-1].mT
            similarity *= lengths[:-1, None]
            similarity *= lengths[1:, :, None]
            similarity.masked_fill_(chosen[pairs, None], NEVER)
            own = slice(pairs.start + 1, pairs.stop + 1)
            best[own], parents[own] = similarity.max(dim=2)
        best[1:].masked_fill_(cuts[:, None], NEVER)
        return best.masked_fill_(chosen, NEVER), parents
    before = None
    firsts = {0, *(frame + 1 for frame, cut in enumerate(cuts.tolist()) if cut), len(tokens)}
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
    kept, targets, sources = upload_together([np.flatnonzero(is_root), roots, members], device)
    return Terms(kept, targets, sources, upload(weights, device))


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
    # Of every root the one it is merged into, and its share there; one more entry takes padding.
    into = F.pad(roots, (0, 1), value=NOWHERE)
    shares = torch.ones_like(into, dtype=torch.float32)
    num_roots = trees.is_root.sum(axis=1)
    starts = np.cumsum([0, *num_roots[:-1]])
    sizes = trees.counts.reshape(trees.is_root.shape)
    gone = np.flatnonzero((wanted == 0) & (num_roots > 0))
    for frame in gone.tolist():
        into[starts[frame] : starts[frame] + num_roots[frame]] = NOWHERE
    whole = [
        np.arange(start, start + count)
        for start, count, want in zip(starts, num_roots, wanted, strict=True)
        if want == count
    ]
    kept = [roots[upload(np.concatenate(whole), roots.device)]] if whole else [roots[:0]]
    some = np.flatnonzero((wanted > 0) & (wanted < num_roots))
    for frames in _batches(some, wanted, roots.device):
        batch = starts[frames], num_roots[frames], wanted[frames]
        kept.append(_cluster(points, roots, *batch, into, shares))
    return Terms(
        torch.cat(kept),
        into[numbers],
        terms.sources,
        terms.weights * shares[numbers],
        num_nowhere=int(sum(sizes[frame][trees.is_root[frame]].sum() for frame in gone)),
    )


def _batches(frames: Counts, wanted: Counts, device: torch.device) -> list[Counts]:
    """Frames that are clustered together: on a CPU one by one, as padding costs more there."""
    if device.type == "cpu":
        return list(frames[:, None])
    neighbors = np.minimum(wanted[frames], NUM_NEIGHBORS)
    return [frames[neighbors == number] for number in np.unique(neighbors)]


def _cluster(
    points: Tensor,
    roots: Tensor,
    starts: Counts,
    sizes: Counts,
    wanted: Counts,
    into: Tensor,
    shares: Tensor,
) -> Tensor:
    """Cluster the trees of some frames, each for itself.

    Args:
        points: (R, D) float32 means of all trees.
        roots: (R,) flat positions of their roots.
        starts: (F,) first tree of every frame.
        sizes: (F,) trees of every frame.
        wanted: (F,) clusters of every frame, with one number of neighbours for all.
        into: (R + 1,) written to: the root that every tree is merged into.
        shares: (R + 1,) written to: its share there.

    Returns:
        (K,) flat positions of the clusters' centres.
    """
    widest, most, device = int(sizes.max()), int(wanted.max()), points.device
    columns = np.arange(widest)
    places = np.where(columns < sizes[:, None], starts[:, None] + columns, len(points))
    filled = np.flatnonzero(np.arange(most) < wanted[:, None])
    at, ends, counts, filled_at = upload_together([places, sizes, wanted, filled], device)
    if len(places) == 1:
        own, members = points[None, int(starts[0]) : int(starts[0] + sizes[0])], None
    else:
        own = points[at.clamp(max=len(points) - 1)]
        members = torch.arange(widest, device=device) < ends[:, None]
    distances = own.new_empty(len(places), widest, widest)
    write_products(own, distances)
    products_to_distances(distances)
    distances /= own.shape[2]
    neighbors = min(int(wanted.min()), NUM_NEIGHBORS)
    centers = density_peaks(distances, most, neighbors, include_self=True, members=members)
    is_padding = torch.arange(most, device=device) >= counts[:, None]
    centers = centers.masked_fill(is_padding, widest)
    labels = assign_to_centers(distances, centers)
    numbers = labels + torch.arange(len(places), device=device)[:, None] * most
    part = None if members is None else members.flatten()
    weights, _ = mean_weights(numbers.flatten(), len(places) * most, part)
    # Padding is centre of nothing, and its results go to the last entry.
    centers_at = F.pad(at, (0, 1), value=len(points)).gather(1, centers)
    rooted = F.pad(roots, (0, 1), value=NOWHERE)[centers_at]
    merged = rooted.gather(1, labels).flatten()
    if part is not None:
        merged = merged.masked_fill_(~part, NOWHERE)
    into.scatter_(0, at.flatten(), merged)
    shares.scatter_(0, at.flatten(), weights)
    return rooted.flatten()[filled_at]
