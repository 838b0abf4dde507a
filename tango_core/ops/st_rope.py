"""ST-RoPE: rotate token features by time, row and column.

Tango, Section 3.3 ("Spatio-temporal Rotary Position Embedding"): the channels are split into a
time, a row and a column section and each is rotated as in RoPE, so an inner product depends on
differences of position only. The section widths follow from D (the paper's three widths do not add
up to 3584).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

CACHE_LINE = 16  # floats


def section_widths(dim: int) -> tuple[int, int, int]:
    """Split D channels into time, row and column sections of even width.

    Args:
        dim: D, even.

    Returns:
        (D - 2 s, s, s) with s = 2 * floor(D / 6); (1196, 1194, 1194) for D = 3584.

    Raises:
        ValueError: If D is odd: rotation works on pairs of channels.
    """
    if dim % 2:
        raise ValueError(f"ST-RoPE rotates pairs of channels, so D must be even, got {dim}")
    space = 2 * (dim // 6)
    return dim - 2 * space, space, space


@dataclass(frozen=True)
class RotationTables:
    """Cosines and sines of every distinct frame time, grid row and grid column.

    Attributes:
        time: (2, T, d_t / 2) cosines and sines by frame.
        row: (2, H, d_s / 2) by grid row.
        column: (2, W, d_s / 2) by grid column.
    """

    time: Tensor
    row: Tensor
    column: Tensor

    @property
    def all(self) -> list[Tensor]:
        """The three tables in the order of the sections."""
        return [self.time, self.row, self.column]

    def of_frames(self, frames: Tensor) -> Tensor:
        """(2, n, d_t / 2) rotations of (n,) frames."""
        return self.time.index_select(1, frames)

    def of_spatial(self, positions: Tensor) -> list[Tensor]:
        """Row and column rotations, (2, n, d_s / 2) each, of (n,) spatial positions h * W + w."""
        width = self.column.shape[1]
        return [
            self.row.index_select(1, positions // width),
            self.column.index_select(1, positions % width),
        ]


def rotation_tables(
    dim: int,
    timestamps: Tensor,
    grid: tuple[int, int],
    base_time: float = 1e4,
    base_space: float = 1e3,
) -> RotationTables:
    """Tabulate the angles of all frames, rows and columns in float32.

    Half precision would round a timestamp above 256 s to whole pairs of seconds.

    Args:
        dim: D, even.
        timestamps: (T,) seconds.
        grid: (H, W); rows and columns count from 0.
        base_time: Base of the time section's wavelengths.
        base_space: Base of the row and column sections' wavelengths.
    """
    widths = section_widths(dim)
    height, width = grid
    device = timestamps.device
    positions = (
        timestamps,
        torch.arange(height, device=device),
        torch.arange(width, device=device),
    )
    bases = (base_time, base_space, base_space)
    return RotationTables(*map(_table, positions, widths, bases))


def _table(positions: Tensor, width: int, base: float) -> Tensor:
    """(2, P, width / 2) cosines and sines of positions * base^(-2 j / width)."""
    exponents = torch.arange(0, width, 2, device=positions.device, dtype=torch.float32) / max(
        width, 1
    )
    angles = positions.float()[:, None] * (1.0 / base**exponents)
    return torch.stack([angles.cos(), angles.sin()])


def rotation_buffer(shape: Sequence[int], tables: RotationTables) -> Tensor:
    """Make room for rotated tokens, every half section in a row that starts on a cache line.

    Rotating into rows that straddle cache lines, as half sections of 597 floats do when they are
    packed, takes a third longer. Padding is zero, so inner products do not change.

    Args:
        shape: Leading sizes.
        tables: Rotation tables; their last sizes are half the sections' widths.

    Returns:
        (*shape, 6, padded half width) float32.
    """
    halves = [table.shape[-1] for table in tables.all]
    padded = -(-max(halves) // CACHE_LINE) * CACHE_LINE
    buffer = torch.empty(*shape, 2 * len(halves), padded, device=tables.time.device)
    buffer[..., min(halves) :] = 0
    return buffer


def rotate(tokens: Tensor, rotations: Sequence[Tensor], out: Tensor) -> None:
    """Rotate the last `len(rotations)` sections of tokens, and copy the sections before them.

    Args:
        tokens: (..., D) float32, of any norm.
        rotations: Cosines and sines, (2, ..., d / 2) for each section, which broadcast against
            (..., d / 2). With three entries (time, row, column) the whole token is rotated. With
            two (row, column) the time section is copied unchanged, for tokens that are only
            compared within their frame.
        out: (..., 6, d / 2 or more) of a `rotation_buffer`; written to.
    """
    halves = [table.shape[-1] for table in rotations for _ in range(2)]
    unrotated = tokens.shape[-1] - sum(halves)
    if unrotated:
        halves = [unrotated // 2] * 2 + halves
    inputs = tokens.split_with_sizes(halves, dim=-1)
    outputs = [row[..., :half] for row, half in zip(out.unbind(-2), halves, strict=True)]
    if unrotated:
        outputs[0].copy_(inputs[0])
        outputs[1].copy_(inputs[1])
        inputs, outputs = inputs[2:], outputs[2:]
    for section, (cosines, sines) in enumerate(rotations):
        u, v = inputs[2 * section : 2 * section + 2]
        out_u, out_v = outputs[2 * section : 2 * section + 2]
        torch.mul(u, cosines, out=out_u).addcmul_(v, sines, value=-1)
        torch.mul(v, cosines, out=out_v).addcmul_(u, sines)


def st_rope(
    tokens: Tensor,
    timestamps: Tensor,
    grid: tuple[int, int],
    base_time: float = 1e4,
    base_space: float = 1e3,
) -> Tensor:
    """Normalise all tokens of a clip and rotate them by frame time, row and column.

    Args:
        tokens: (T, H * W, D), any float dtype.
        timestamps: (T,) seconds.
        grid: (H, W).
        base_time: Base of the time section's wavelengths.
        base_space: Base of the row and column sections' wavelengths.

    Returns:
        (T, H * W, D) float32 of norm 1 (0 for a zero token).

    Raises:
        ValueError: If D is odd.
    """
    _, tokens_per_frame, dim = tokens.shape
    device = tokens.device
    units = torch.nn.functional.normalize(tokens.float(), dim=-1).flatten(0, 1)
    tables = rotation_tables(dim, timestamps.to(device), grid, base_time, base_space)
    positions = torch.arange(len(units), device=device)
    times = tables.of_frames(positions // tokens_per_frame)
    rotations = [times, *tables.of_spatial(positions % tokens_per_frame)]
    rotated = rotation_buffer(units.shape[:1], tables)
    rotate(units, rotations, out=rotated)
    halves = [table.shape[-1] for table in rotations for _ in range(2)]
    rows = [row[..., :half] for row, half in zip(rotated.unbind(-2), halves, strict=True)]
    return torch.cat(rows, dim=-1).view_as(tokens)
