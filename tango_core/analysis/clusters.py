"""Fragmentation of token clusters with and without ST-RoPE.

Tango clusters tokens by features that are rotated by time and position (Section 3.3). Without the
rotation, a cluster contains similar tokens from the whole clip, so a merged token represents many
positions. This module counts the connected pieces of every cluster in time, rows and columns.

Clusters are those of Tango's merging (density peaks over 7 neighbours, every token to its nearest
centre), computed on all tokens of a window of consecutive frames.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from tango_core.errors import InputError
from tango_core.ops.clustering import assign_to_centers, density_peaks, squared_distances
from tango_core.ops.st_rope import st_rope
from tango_core.types import VisualFeatures

NUM_NEIGHBORS = 7


def cluster_labels(
    features: VisualFeatures, frames: slice, share: float, *, rotated: bool
) -> Tensor:
    """Cluster all tokens of some frames.

    Args:
        features: Features of a clip, all finite.
        frames: Range of consecutive frames.
        share: Number of clusters per token, in (0, 1]; at least one cluster is made.
        rotated: Whether features are rotated by seconds, row and column (ST-RoPE with Tango's
            bases); otherwise unrotated unit features are compared.

    Returns:
        (t, H, W) int64 cluster indices, on the CPU.

    Raises:
        ValueError: If D is odd, which ST-RoPE cannot rotate, or `share` is out of range.
    """
    if not 0 < share <= 1:
        raise InputError(f"clusters per token must be in (0, 1], got {share}")
    tokens, times = features.tokens[frames].float(), features.timestamps[frames]
    points = st_rope(tokens, times, features.grid) if rotated else F.normalize(tokens, dim=-1)
    flat = points.flatten(0, 1)[None]
    distances = squared_distances(flat)
    number = max(1, round(share * flat.shape[1]))
    centers = density_peaks(distances, number, NUM_NEIGHBORS).sort(dim=-1).values
    return assign_to_centers(distances, centers)[0].view(len(tokens), *features.grid).cpu()


def fragmentation(labels: Tensor) -> tuple[Tensor, Tensor]:
    """Count the connected pieces of every cluster.

    Args:
        labels: (t, H, W) cluster indices. Tokens are adjacent in rows and columns of a frame, and
            at one position of consecutive frames.

    Returns:
        (C,) int64 number of pieces of every non-empty cluster, and (C,) share of its tokens that
        are in its largest piece, in (0, 1].
    """
    pieces = connected_pieces(labels).flatten()
    found, sizes = torch.unique(pieces, return_counts=True)
    owners = labels.flatten()[found]  # a piece is identified by one of its tokens
    clusters, numbers, counts = torch.unique(owners, return_inverse=True, return_counts=True)
    nothing = torch.zeros(len(clusters), dtype=torch.int64)
    totals = nothing.index_add(0, numbers, sizes)
    return counts, nothing.scatter_reduce(0, numbers, sizes, reduce="amax") / totals


def connected_pieces(labels: Tensor) -> Tensor:
    """(t, H, W) int64: the smallest flat position in the connected piece of every token.

    Args:
        labels: (t, H, W) cluster indices on the CPU.
    """
    names = torch.arange(labels.numel()).view(labels.shape)
    while True:
        before = names
        for axis in range(labels.ndim):
            length = labels.shape[axis] - 1
            first, second = labels.narrow(axis, 0, length), labels.narrow(axis, 1, length)
            one, other = names.narrow(axis, 0, length), names.narrow(axis, 1, length)
            least = torch.minimum(one, other)
            touch = first == second
            names = names.clone()
            names.narrow(axis, 0, length).copy_(torch.where(touch, least, one))
            own = names.narrow(axis, 1, length)
            own.copy_(torch.where(touch, torch.minimum(own, least), own))
        # Pointer jumping: long chains need few iterations.
        names = names.flatten()[names]
        if torch.equal(names, before):
            return names
