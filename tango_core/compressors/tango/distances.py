"""Distances between the tokens of a clip under ST-RoPE, computed in blocks that fit the cache.

Rotated features are computed per group (on an accelerator, for as many groups as fit a fixed
workspace), multiplied and overwritten, never stored for a whole clip. Norms scale the products
instead of the features, and half precision is converted to float32 when it is read.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from tango_core.ops.clustering import products_to_distances
from tango_core.ops.products import write_products
from tango_core.ops.st_rope import RotationTables, rotate, rotation_buffer

# Floats per core in one product, in whole groups, and floats that are gathered and rotated at once
# (1.5 MB, which fit the cache). A GPU needs 1 GB for full utilisation.
CPU_WORKSPACE = 2**20
CPU_CHUNK = 3 * 2**17
DEVICE_WORKSPACE = 2**28


@dataclass(frozen=True, eq=False)
class ClipTensors:
    """Tensors of a clip that selection reads.

    Attributes:
        tokens: (T, L, D) any float dtype, contiguous.
        norms: (T, L) float32.
        scores: (T, L) float32.
        tables: Rotations of ST-RoPE, or `None` to cluster unrotated unit features.
        excluded: (L,) bool, spatial positions never selected by score; `None` for none.
    """

    tokens: Tensor
    norms: Tensor
    scores: Tensor
    tables: RotationTables | None
    excluded: Tensor | None


def distances_between(clip: ClipTensors, rows: Tensor, *, of_one_frame: bool = False) -> Tensor:
    """Squared distances between the given tokens of a group, for several groups.

    Args:
        clip: Tensors of the clip.
        rows: (P, M) int64 flat positions of the tokens.
        of_one_frame: Whether all tokens of a group are from one frame, so time needs no rotation.

    Returns:
        (P, M, M) float32.
    """
    num_groups, num_points = rows.shape
    dim, device = clip.tokens.shape[-1], rows.device
    distances = torch.empty(num_groups, num_points, num_points, device=device)
    step = _at_once(num_points * dim, num_groups, device)
    if clip.tables is None:
        points = torch.empty(step, num_points, 1, dim, device=device)
    else:
        points = rotation_buffer((step, num_points), clip.tables)
    for start in range(0, num_groups, step):
        chunk = rows[start : start + step]
        rotated = points[: len(chunk)]
        _write_rotated(clip, chunk.flatten(), rotated.flatten(0, 1), of_one_frame)
        write_products(rotated.flatten(2), distances[start : start + step])
    norms = clip.norms.flatten()[rows]
    products_to_distances(distances, 1 / norms.clamp(min=1e-12))
    return distances


def _write_rotated(clip: ClipTensors, rows: Tensor, out: Tensor, of_one_frame: bool) -> None:
    """Gather the tokens at (n,) flat positions and write them, rotated, to `out`."""
    tokens_per_frame, dim = clip.tokens.shape[1:]
    tokens = clip.tokens.view(-1, dim)
    frames, spatial = rows // tokens_per_frame, rows % tokens_per_frame
    step = len(rows)
    if rows.device.type == "cpu":
        step = max(1, CPU_CHUNK * torch.get_num_threads() // dim)
    for start in range(0, len(rows), step):
        chunk = slice(start, start + step)
        found, target = tokens.index_select(0, rows[chunk]).float(), out[chunk]
        if clip.tables is None:
            target.copy_(found[:, None])
        else:
            of_time = [] if of_one_frame else [clip.tables.of_frames(frames[chunk])]
            rotate(found, [*of_time, *clip.tables.of_spatial(spatial[chunk])], out=target)


def _at_once(floats: int, count: int, device: torch.device) -> int:
    """How many of `count` items of `floats` floats to process at once, at least one per core."""
    if device.type == "cpu":
        at_once = max(1, CPU_WORKSPACE // max(floats, 1)) * torch.get_num_threads()
    else:
        at_once = max(1, DEVICE_WORKSPACE // max(floats, 1))
    return min(count, at_once)
