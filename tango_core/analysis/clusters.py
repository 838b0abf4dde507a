"""Fragmentation of token clusters with and without ST-RoPE.

Tango clusters tokens by features that are rotated by time and position (Section 3.3). Without the
rotation, a cluster contains similar tokens from the whole clip, so a merged token represents many
positions. This module counts the connected pieces of every cluster in time, rows and columns.

Clusters are those of Tango's merging (density peaks over 7 neighbours, every token to its nearest
centre), computed on all tokens of a window of consecutive frames.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import torch.nn.functional as F
from scipy.sparse import coo_array
from scipy.sparse.csgraph import connected_components

from tango_core.ops.clustering import assign_to_centers, density_peaks, squared_distances
from tango_core.ops.st_rope import st_rope
from tango_core.types import VisualFeatures

NUM_NEIGHBORS = 7

Labels = npt.NDArray[np.int64]


def cluster_labels(
    features: VisualFeatures, frames: slice, share: float, *, rotated: bool
) -> Labels:
    """Cluster all tokens of some frames.

    Args:
        features: Features of a clip, all finite.
        frames: Range of consecutive frames.
        share: Number of clusters per token, in (0, 1]; at least one cluster is made.
        rotated: Whether features are rotated by seconds, row and column (ST-RoPE with Tango's
            bases); otherwise unrotated unit features are compared.

    Returns:
        (t, H, W) cluster indices.

    Raises:
        ValueError: If D is odd, which ST-RoPE cannot rotate.
    """
    tokens, times = features.tokens[frames].float(), features.timestamps[frames]
    points = st_rope(tokens, times, features.grid) if rotated else F.normalize(tokens, dim=-1)
    flat = points.flatten(0, 1)[None]
    distances = squared_distances(flat)
    number = max(1, round(share * flat.shape[1]))
    centers = density_peaks(distances, number, NUM_NEIGHBORS).sort(dim=-1).values
    labels = assign_to_centers(distances, centers)[0].view(len(tokens), *features.grid)
    return np.asarray(labels.cpu().numpy())


def fragmentation(labels: Labels) -> tuple[Labels, npt.NDArray[np.float64]]:
    """Count the connected pieces of every cluster.

    Args:
        labels: (t, H, W) cluster indices. Tokens are adjacent in rows and columns of a frame, and
            at one position of consecutive frames.

    Returns:
        (C,) number of pieces of every non-empty cluster, and (C,) share of its tokens that are in
        its largest piece, in (0, 1].
    """
    positions = np.arange(labels.size).reshape(labels.shape)
    edges = []
    for axis in range(labels.ndim):
        own, at = np.moveaxis(labels, axis, 0), np.moveaxis(positions, axis, 0)
        touch = own[:-1] == own[1:]
        edges.append([at[:-1][touch], at[1:][touch]])
    first, second = np.concatenate(edges, axis=1)
    graph = coo_array((np.ones(len(first)), (first, second)), shape=(labels.size, labels.size))
    _, pieces = connected_components(graph, directed=False)
    _, tokens, sizes = np.unique(pieces, return_index=True, return_counts=True)
    _, owners, counts = np.unique(labels.flat[tokens], return_inverse=True, return_counts=True)
    largest = np.zeros(len(counts))
    np.maximum.at(largest, owners, sizes)
    return counts, largest / np.bincount(owners, weights=sizes)
