"""Inner products of all points of a group with each other.

The matrix is symmetric, so little more than half of it is computed and then mirrored; the result
is bitwise symmetric.
"""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor
from torch.nn import functional as F

# Rows per block: smaller blocks make slow products, larger ones compute more entries twice.
SMALLEST_BLOCK = 64
LARGEST_BLOCK = 512
DEVICE_BLOCK = 4096


def write_products(points: Tensor, out: Tensor) -> None:
    """Write the inner products of all points of a group with each other, bitwise symmetric.

    Args:
        points: (B, M, D) float32.
        out: (B, M, M) float32.
    """
    if _onednn_pays(out):
        for group, matrix in zip(points, out, strict=True):
            _write_with_onednn(group, matrix)
    else:
        _write_batched(points, out)


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


def _write_with_onednn(points: Tensor, out: Tensor) -> None:
    """Write the (M, M) products of one group with oneDNN."""
    for rows, known in _blocks(out):
        product = F.linear(points[rows].to_mkldnn(), points[known]).to_dense()
        _write_mirrored(product, out, rows)


def _write_batched(points: Tensor, out: Tensor) -> None:
    """Write the (B, M, M) products of all groups at once."""
    for rows, known in _blocks(out):
        _write_mirrored(points[:, rows] @ points[:, known].mT, out, rows)


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
