"""Process many rows in blocks that fit the cache, and inner products of all points of a group.

The matrix of products is symmetric, so little more than half of it is computed and then mirrored;
the result is bitwise symmetric.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import torch
from torch import Tensor
from torch.nn import functional as F

from tango_core.ops.transfer import upload

# 1 MB of float32 stays in the cache of a core; a GPU takes larger blocks, bounded by memory.
CPU_ELEMENTS = 2**18
DEVICE_ELEMENTS = 2**26
# Rows per block: smaller blocks make slow products, larger ones compute more entries twice.
SMALLEST_BLOCK = 64
LARGEST_BLOCK = 512
DEVICE_BLOCK = 4096


def row_blocks(num_rows: int, width: int, device: torch.device) -> list[slice]:
    """Consecutive ranges that together cover all rows.

    Args:
        num_rows: Rows to cover.
        width: Elements of a row.
        device: Where the rows are.
    """
    elements = CPU_ELEMENTS if device.type == "cpu" else DEVICE_ELEMENTS
    step = max(1, elements // max(1, width))
    return [slice(start, min(start + step, num_rows)) for start in range(0, num_rows, step)]


def take_frames(tokens: Tensor, frames: Sequence[int]) -> Tensor:
    """Select frames given in ascending order; consecutive frames are returned as a view."""
    if frames[-1] - frames[0] + 1 == len(frames):
        return tokens[frames[0] : frames[-1] + 1]
    return tokens[upload(frames, tokens.device)]


def write_products(points: Tensor, out: Tensor) -> None:
    """Write the inner products of all points of a group with each other, bitwise symmetric.

    Args:
        points: (B, M, D) float32.
        out: (B, M, M) float32.
    """
    if _onednn_pays(out):
        for group, matrix in zip(points, out, strict=True):
            for rows, known in _blocks(matrix):
                product = F.linear(group[rows].to_mkldnn(), group[known]).to_dense()
                _write_mirrored(product, matrix, rows)
    else:
        for rows, known in _blocks(out):
            _write_mirrored(points[:, rows] @ points[:, known].mT, out, rows)


def cross_products(rows: Tensor, columns: Tensor) -> Tensor:
    """(B, M, N) float32 inner products of (B, M, D) with (B, N, D) float32 points."""
    if _onednn_pays(rows):
        pairs = zip(rows, columns, strict=True)
        return torch.stack([F.linear(one.to_mkldnn(), other).to_dense() for one, other in pairs])
    return rows @ columns.mT


def _onednn_pays(points: Tensor) -> bool:
    """Whether products of these points are faster with oneDNN.

    PyTorch multiplies float32 matrices on a CPU with MKL, which leaves half of the vector units of
    some processors with AVX-512 unused. Its linear layers on tensors in oneDNN's layout do not; on
    other processors they take a third longer.
    """
    has_onednn = torch.backends.mkldnn.is_available()  # type: ignore[no-untyped-call]
    is_wide = torch.backends.cpu.get_cpu_capability() == "AVX512"
    return points.device.type == "cpu" and is_wide and bool(has_onednn)


def _blocks(out: Tensor) -> Iterator[tuple[slice, slice]]:
    """Blocks of rows, each with the columns up to its last row; the rest follows by symmetry."""
    num_points = max(1, out.shape[-1])
    size = DEVICE_BLOCK
    if out.device.type == "cpu":
        wanted = min(max(SMALLEST_BLOCK, num_points // 6), LARGEST_BLOCK)
        size = -(-num_points // max(1, round(num_points / wanted)))
    for start in range(0, out.shape[-1], size):
        stop = min(start + size, num_points)
        yield slice(start, stop), slice(0, stop)


def _write_mirrored(product: Tensor, out: Tensor, rows: slice) -> None:
    """Write (..., n, stop) products of a block of rows with all rows up to its last."""
    before = slice(0, rows.start)
    beside, own = product[..., before], product[..., rows]
    out[..., rows, before] = beside
    out[..., before, rows] = beside.mT
    out[..., rows, rows] = torch.minimum(own, own.mT)
