"""FlashVID's steps: diverse selection (ADTS), and trees over frames with clusters (TSTM).

TSTM links every token that was not chosen to its most similar token of the previous frame, at any
position; a tree becomes the mean of its tokens, at its earliest frame. Similarities are computed
per pair of frames, so only one L x L matrix is in memory.

ADTS chooses tokens that are far from each other: with weighted distances d[i, j] * w[j], the next
token is the one with the largest minimum distance to the chosen tokens; all frames are processed in
parallel. Budgets are computed on the host: the release rounds up twice per frame, the exact budget
divides round(retention * T * L) by largest remainder.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from torch import Tensor

from tango_core.combination import NOWHERE, Terms
from tango_core.compressors.base import num_kept
from tango_core.ops.blocks import cross_products, row_blocks, write_products
from tango_core.ops.budgets import apportion, ceil_share, evenly, fill
from tango_core.ops.clustering import assign_to_centers, density_peaks, products_to_distances
from tango_core.ops.merging import cluster_sums, mean_weights
from tango_core.ops.saliency import rank_descending
from tango_core.ops.transfer import upload, upload_together

Counts = NDArray[np.int64]


def plan_budgets(
    num_frames: int, tokens_per_frame: int, retention: float, ratio: float, *, exact: bool
) -> tuple[list[int], list[int]]:
    """Compute the total and the chosen number of tokens of every frame.

    Args:
        num_frames: T.
        tokens_per_frame: L.
        retention: Share of the tokens to keep, in (0, 1).
        ratio: Share of the budget that is chosen, in [0, 1].
        exact: Meet round(retention * T * L) instead of rounding up in every frame.
    """
    if exact:
        total = num_kept(num_frames * tokens_per_frame, retention)
        per_frame = evenly(total, num_frames)
        chosen = evenly(min(total, ceil_share(total, ratio)), num_frames)
        return per_frame, [min(part, whole) for part, whole in zip(chosen, per_frame, strict=True)]
    # On the grids of real models the release's rounding gives the same result.
    frame = min(tokens_per_frame, ceil_share(tokens_per_frame, retention))
    part = min(frame, ceil_share(frame, ratio))
    return [frame] * num_frames, [part] * num_frames


def plan_clusters(wanted: Counts, lengths: list[int], roots: Counts, *, exact: bool) -> Counts:
    """Compute the number of tree tokens of every frame.

    Args:
        wanted: Number of tree tokens of every segment.
        lengths: Frames of every segment.
        roots: (T,) number of tree roots in every frame.
        exact: Divide by largest remainder instead of rounding up.

    Returns:
        (T,) whole numbers, at most `roots`.
    """
    bounds = np.cumsum([0, *lengths])[:-1]
    found = np.add.reduceat(roots, bounds)
    if exact:
        # Tokens that a segment cannot use go to other segments.
        weights = np.maximum(wanted, 1e-9).astype(float)
        shares = fill(float(wanted.sum()), weights, found.astype(float))
        ratios = np.repeat(shares / np.maximum(found, 1), lengths)
        return apportion(int(wanted.sum()), roots * ratios, roots)
    counts = np.empty_like(roots)
    for segment, (start, length) in enumerate(zip(bounds.tolist(), lengths, strict=True)):
        own = slice(start, start + length)
        # Rounded like the release: golden vectors depend on the last bit of the product.
        share = wanted[segment] / found[segment] if found[segment] else 1.0
        counts[own] = (
            roots[own]
            if share >= 1
            else [math.ceil(count * share) for count in roots[own].tolist()]
        )
    return counts


def pick_diverse(distances: Tensor, weights: Tensor, counts: list[int]) -> Tensor:
    """Choose tokens of every frame by farthest points under weighted distances.

    The first token has the largest second-smallest weighted distance (the smallest is its own 0);
    then always the token with the largest minimum distance to the chosen ones follows. A token is
    never chosen twice, unlike in the release with weights of 0 or less.

    Args:
        distances: (T, L, L) cosine distances, symmetric, 0 on the diagonal, not negative.
        weights: (T, L) factors of the columns, of any sign.
        counts: Number of tokens to choose in every frame, at most L.

    Returns:
        (T, L) bool, the chosen tokens.
    """
    num_frames, tokens_per_frame, _ = distances.shape
    steps = max(counts)
    chosen = torch.zeros(num_frames, tokens_per_frame, dtype=torch.bool, device=weights.device)
    if steps == 0:
        return chosen
    order = torch.empty(num_frames, steps, dtype=torch.int64, device=weights.device)
    taken = torch.zeros_like(weights)  # -inf where a token is chosen
    gaps = _second_smallest(distances, weights)
    nearest = torch.full_like(weights, torch.inf)
    for step in range(steps):
        best = (gaps + taken).argmax(dim=1, keepdim=True)
        order[:, step : step + 1] = best
        taken.scatter_(1, best, -torch.inf)
        rows = distances.gather(1, best[..., None].expand(-1, -1, tokens_per_frame))[:, 0]
        gaps = torch.minimum(nearest, rows.mul_(weights), out=nearest)
    wanted = upload(counts, chosen.device)[:, None]
    return chosen.scatter_(1, order, torch.arange(steps, device=chosen.device) < wanted)


def pick_attended(attention: Tensor, counts: list[int]) -> Tensor:
    """(T, L) bool, the `counts` most attended tokens of every frame; ties by position."""
    ranked = rank_descending(attention.float())
    limits = upload(counts, ranked.device)[:, None]
    wanted = torch.arange(attention.shape[1], device=ranked.device) < limits
    return torch.zeros_like(ranked, dtype=torch.bool).scatter_(1, ranked, wanted)


def _second_smallest(distances: Tensor, weights: Tensor) -> Tensor:
    """(T, L) second-smallest entries of the columns of the weighted distances."""
    tokens_per_frame = distances.shape[1]
    if tokens_per_frame == 1:
        return torch.zeros_like(weights)
    # A positive weight keeps the order of a column; its smallest entry is the diagonal's 0.
    others = distances + torch.eye(tokens_per_frame, device=distances.device) * 1e9
    second = others.amin(dim=1) * weights
    # A negative weight reverses it. Only on a CPU is it cheap to check whether there is one.
    if weights.device.type != "cpu" or bool((weights < 0).any()):
        largest = distances.topk(2, dim=1).values[:, 1]
        second = torch.where(weights < 0, largest * weights, second)
    return second


NUM_NEIGHBORS = 7
# Similarity of tokens that may not be linked.
NEVER = -1.0
LEAST = NEVER + 1e-6


@dataclass(frozen=True)
class Trees:
    """Trees of linked tokens.

    Attributes:
        root: (T * L,) int64 flat position of every token's root; its own for a root.
        is_root: (T, L) bool, roots that are not chosen tokens.
        counts: (T * L,) int64 number of tokens of the tree of every root, 1 elsewhere.
        children: (T * L,) int64 number of tokens linked directly to every token.
    """

    root: NDArray[np.int64]
    is_root: NDArray[np.bool_]
    counts: NDArray[np.int64]
    children: NDArray[np.int64]


def best_links(
    tokens: Tensor, norms: Tensor, chosen: Tensor, cuts: Tensor
) -> tuple[Tensor, Tensor]:
    """Find for every token the most similar token of the previous frame.

    Args:
        tokens: (T, L, D), any float dtype; computed in float32.
        norms: (T, L) float32 lengths of the tokens.
        chosen: (T, L) bool, tokens that are not linked.
        cuts: (T - 1,) bool, whether a segment ends with frame i, so frame i + 1 has no links.

    Returns:
        (T, L) float32 cosines, -1 where there is no link, and (T, L) int64 positions in the
        previous frame.
    """
    best = torch.full_like(norms, NEVER)
    parents = torch.zeros(chosen.shape, dtype=torch.int64, device=chosen.device)
    inverse = norms.clamp(min=1e-12).reciprocal()
    for pairs in row_blocks(len(tokens) - 1, tokens[0].numel(), tokens.device):
        # On a device all pairs of frames, because reading the cuts takes longer.
        if tokens.device.type == "cpu" and bool(cuts[pairs].all()):
            continue
        both = tokens[pairs.start : pairs.stop + 1].float()
        lengths = inverse[pairs.start : pairs.stop + 1]
        similarity = cross_products(both[1:], both[:-1])
        similarity *= lengths[:-1, None]
        similarity *= lengths[1:, :, None]
        similarity.masked_fill_(chosen[pairs, None], NEVER)
        own = slice(pairs.start + 1, pairs.stop + 1)
        best[own], parents[own] = similarity.max(dim=2)
    best[1:].masked_fill_(cuts[:, None], NEVER)
    return best.masked_fill_(chosen, NEVER), parents


def grow_trees(
    best: NDArray[np.float32],
    parents: NDArray[np.int64],
    chosen: NDArray[np.bool_],
    lengths: list[int],
    totals: Counts,
    tau: float,
) -> Trees:
    """Link similar tokens, but keep enough roots in every segment for its budget.

    Args:
        best: (T, L) cosine with the most similar token of the previous frame, -1 for none.
        parents: (T, L) position of that token.
        chosen: (T, L) tokens that are not linked.
        lengths: Frames of every segment.
        totals: Token budget of every segment, chosen tokens included.
        tau: Cosine above which tokens are linked.
    """
    num_frames, tokens_per_frame = best.shape
    linked = np.zeros_like(chosen)
    start = 0
    for length, total in zip(lengths, totals.tolist(), strict=True):
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
        # The previous frame's entries already point to roots.
        root[frame] = np.where(linked[frame], root.reshape(-1)[parent[frame]], flat[frame])
    size = num_frames * tokens_per_frame
    counts = np.bincount(root.reshape(-1), minlength=size).clip(min=1)
    children = np.bincount(parent[linked], minlength=size)
    return Trees(root.reshape(-1), ~linked & ~chosen, counts, children)


def _threshold(values: NDArray[np.float32], rank: int) -> float:
    """The `rank`-th largest value, counted from 1; for rank 0 a value above all."""
    if rank <= 0:
        return np.inf
    largest = np.partition(values.reshape(-1), values.size - rank)[values.size - rank]
    return max(float(largest), LEAST)


def tree_terms(trees: Trees, device: torch.device, *, official: bool) -> Terms:
    """Terms that merge every tree into one token at its root, by position.

    Args:
        trees: The clip's trees.
        device: Device of the terms.
        official: Divide a tree's sum by 1 + the number of children of its root, as released,
            instead of by its number of tokens.
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
        trees: The clip's trees.
        wanted: (T,) number of clusters of every frame, at most its number of roots.
        official: As for `tree_terms`.
    """
    terms = tree_terms(trees, tokens.device, official=official)
    roots = terms.kept
    numbers = torch.searchsorted(roots, terms.targets)
    points = cluster_sums(tokens, numbers, len(roots), terms.weights, sources=terms.sources)
    # Per root: the root it is merged into, and its weight; an extra entry receives padding.
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
    """Batches of frames to cluster; single frames on a CPU, where padding is costly."""
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
    """Cluster the trees of some frames, each frame independently.

    Args:
        points: (R, D) float32 means of all trees.
        roots: (R,) flat positions of their roots.
        starts: (F,) index of the first tree of every frame.
        sizes: (F,) number of trees of every frame.
        wanted: (F,) number of clusters of every frame; all use one number of neighbours.
        into: (R + 1,) output: the root that every tree is merged into.
        shares: (R + 1,) output: the tree's weight there.

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
    # Padded centres have no members; their results go to the last entry.
    centers_at = F.pad(at, (0, 1), value=len(points)).gather(1, centers)
    rooted = F.pad(roots, (0, 1), value=NOWHERE)[centers_at]
    merged = rooted.gather(1, labels).flatten()
    if part is not None:
        merged = merged.masked_fill_(~part, NOWHERE)
    into.scatter_(0, at.flatten(), merged)
    shares.scatter_(0, at.flatten(), weights)
    return rooted.flatten()[filled_at]
