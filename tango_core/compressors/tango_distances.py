"""Distances between the tokens of a clip under ST-RoPE, in pieces that stay in the cache.

Rotated features are never held for a whole clip: they are made frame by frame (on an accelerator,
as many at once as fit a fixed workspace), multiplied out, and overwritten. Norms scale the products
instead of the features.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from tango_core.ops.clustering import products_to_distances, write_products
from tango_core.ops.st_rope import RotationTables, rotate

# Floats that are rotated at once: 4 MB stay in the cache of a core, 1 GB keeps a GPU busy.
CPU_WORKSPACE = 2**20
DEVICE_WORKSPACE = 2**28


@dataclass(frozen=True, eq=False)
class Clip:
    """What selection reads.

    Attributes:
        tokens: (T, L, D) float32, contiguous.
        norms: (T, L) float32.
        scores: (T, L) float32.
        tables: Rotations of ST-RoPE, or `None` to cluster bare unit features.
        excluded: (L,) bool, cells that are never picked for their score; `None` for none.
    """

    tokens: Tensor
    norms: Tensor
    scores: Tensor
    tables: RotationTables | None
    excluded: Tensor | None


def upload(array: np.ndarray, device: torch.device) -> Tensor:
    """Copy an array to the device without waiting for it."""
    return torch.from_numpy(np.ascontiguousarray(array)).to(device, non_blocking=True)


def distances_within_frames(
    clip: Clip, frames: NDArray[np.int64], cells: Tensor, *, whole: bool = False
) -> Tensor:
    """Squared distances between tokens of one frame, for several frames.

    Tokens of one frame share its time, and a rotation in common leaves their distances alone: the
    time section is used as it is.

    Args:
        clip: Measured features.
        frames: (P,) frame numbers.
        cells: (P, M) int64 grid cells.
        whole: Whether they are all cells in order, which need not be gathered.

    Returns:
        (P, M, M) float32.
    """
    num_groups, num_cells = cells.shape
    dim, device = clip.tokens.shape[-1], cells.device
    distances = torch.empty(num_groups, num_cells, num_cells, device=device)
    step = _step(num_cells * dim, num_groups, device)
    time_width = 0 if clip.tables is None else 2 * clip.tables.time.shape[-1]
    gathered = torch.empty(step, num_cells, dim, device=device)
    rotated = torch.empty(step, num_cells, dim - time_width, device=device)
    for start in range(0, num_groups, step):
        chunk = slice(start, start + step)
        tokens = _tokens_at(clip, frames[chunk], cells[chunk], None if whole else gathered)
        parts = [tokens]
        if clip.tables is not None:
            turned = rotated[: len(tokens)]
            if whole:
                shape = (len(tokens), *clip.tables.grid, -1)
                rotate(tokens.view(shape), clip.tables.of_grid(), out=turned.view(shape))
            else:
                rotate(tokens, clip.tables.of_cells(cells[chunk]), out=turned)
            parts = [tokens[..., :time_width], turned]
        write_products(parts, distances[chunk])
    products_to_distances(distances, _scale(clip, frames, cells))
    return distances


def distances_across_frames(
    clip: Clip, frames: NDArray[np.int64], cells: Tensor, *, whole: bool = False
) -> Tensor:
    """Squared distances between tokens at the same cells of all frames of a segment.

    Args:
        clip: Measured features.
        frames: (P, F) frame numbers.
        cells: (P, M) int64 grid cells.
        whole: Whether they are all cells in order, which need not be gathered.

    Returns:
        (P, F * M, F * M) float32, tokens in frame-major order.
    """
    num_pools, num_frames = frames.shape
    num_cells, num_points = cells.shape[1], num_frames * cells.shape[1]
    dim, device = clip.tokens.shape[-1], cells.device
    distances = torch.empty(num_pools, num_points, num_points, device=device)
    step = _step(num_cells * dim, num_frames, device)
    gathered = torch.empty(step, num_cells, dim, device=device)
    points = torch.empty(num_frames, num_cells, dim, device=device)
    for pool in range(num_pools):
        places = [] if clip.tables is None else clip.tables.of_cells(cells[pool : pool + 1])
        for start in range(0, num_frames, step):
            chunk = slice(start, start + step)
            at = cells[pool : pool + 1].expand(len(frames[pool, chunk]), -1)
            tokens = _tokens_at(clip, frames[pool, chunk], at, None if whole else gathered)
            if clip.tables is None:
                points[chunk] = tokens
            else:
                times = clip.tables.of_frames(upload(frames[pool, chunk], device))
                rotate(tokens, [times[:, :, None], *places], out=points[chunk])
        write_products([points.reshape(1, num_points, dim)], distances[pool : pool + 1])
        scale = _scale(clip, frames[pool], cells[pool : pool + 1]).reshape(1, -1)
        products_to_distances(distances[pool : pool + 1], scale)
    return distances


def _step(floats: int, count: int, device: torch.device) -> int:
    """Frames to rotate at once."""
    workspace = CPU_WORKSPACE if device.type == "cpu" else DEVICE_WORKSPACE
    return min(count, max(1, workspace // max(floats, 1)))


def _scale(clip: Clip, frames: NDArray[np.int64], cells: Tensor) -> Tensor:
    """(Q, M) inverse norms of the tokens at (Q,) frames and (Q or 1, M) cells."""
    norms = clip.norms[upload(frames, cells.device)[:, None], cells]
    return 1 / norms.clamp(min=1e-12)


def _tokens_at(
    clip: Clip, frames: NDArray[np.int64], cells: Tensor, gathered: Tensor | None
) -> Tensor:
    """(Q, M, D) tokens at (Q,) frames and (Q, M) cells: a view of whole frames, or gathered."""
    _, num_cells, dim = clip.tokens.shape
    first, count = int(frames[0]), len(frames)
    if gathered is None:
        if (np.diff(frames) == 1).all():
            return clip.tokens[first : first + count]
        return clip.tokens[upload(frames, cells.device)]
    flat = upload(frames, cells.device)[:, None] * num_cells + cells
    target = gathered[:count]
    torch.index_select(clip.tokens.reshape(-1, dim), 0, flat.flatten(), out=target.view(-1, dim))
    return target
