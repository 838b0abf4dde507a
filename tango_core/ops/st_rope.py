"""ST-RoPE: rotate token features by when and where they are, so that distances know about both.

Tango, Section 3.3 ("Spatio-temporal Rotary Position Embedding"): the channels are split into a
time, a row and a column section and each is rotated as in RoPE, so an inner product depends on
differences of position only. The section widths follow from D (the paper's three widths do not add
up to 3584).
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor


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
    """Cosines and sines of every distinct position, the only ones ever computed.

    Attributes:
        time: (2, T, d_t / 2) cosines and sines by frame.
        row: (2, H, d_s / 2) by grid row.
        column: (2, W, d_s / 2) by grid column.
    """

    time: Tensor
    row: Tensor
    column: Tensor

    @property
    def grid(self) -> tuple[int, int]:
        """(H, W)."""
        return self.row.shape[1], self.column.shape[1]


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


def rotate(
    tokens: Tensor, frames: Tensor | None, cells: Tensor, tables: RotationTables, out: Tensor
) -> None:
    """Rotate the tokens at some grid cells of some frames.

    Args:
        tokens: (Q, M, D) float32, of any norm.
        frames: (Q,) int64 indices into the tables' frames; `None` leaves the time section out, for
            tokens that are only compared within their own frame.
        cells: (Q or 1, M) int64 flat grid cells h * W + w.
        tables: Of the clip.
        out: (Q, M, D) float32, or (Q, M, D - d_t) without the time section; written to.
    """
    width = tables.grid[1]
    sections = [tables.row[:, cells // width], tables.column[:, cells % width]]
    if frames is not None:
        sections.insert(0, tables.time[:, frames][:, :, None])
    start = tokens.shape[-1] - out.shape[-1]
    position = 0
    for cosines, sines in sections:
        half = cosines.shape[-1]
        u, v = tokens[..., start : start + half], tokens[..., start + half : start + 2 * half]
        out_u = out[..., position : position + half]
        out_v = out[..., position + half : position + 2 * half]
        torch.mul(u, cosines, out=out_u).addcmul_(v, sines, value=-1)
        torch.mul(v, cosines, out=out_v).addcmul_(u, sines)
        start += 2 * half
        position += 2 * half


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
    num_frames, tokens_per_frame, dim = tokens.shape
    device = tokens.device
    units = torch.nn.functional.normalize(tokens.float(), dim=-1)
    tables = rotation_tables(dim, timestamps.to(device), grid, base_time, base_space)
    frames = torch.arange(num_frames, device=device)
    cells = torch.arange(tokens_per_frame, device=device)[None]
    rotated = torch.empty_like(units)
    rotate(units, frames, cells, tables, out=rotated)
    return rotated
