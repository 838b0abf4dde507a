"""From decoded frames to the patches of Qwen's towers, without torchvision.

Frames arrive resized: `FrameSpec` with `max_pixels`, `min_pixels` and `multiple` is qwen-vl-utils'
rule, and the decode stage applies it.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from torch import Tensor


@dataclass(frozen=True)
class PatchLayout:
    """How the tower cuts frames into patches.

    Attributes:
        patch: Side of a patch in pixels.
        merge: Side of a token in patches.
        frames: Frames of a temporal position.
    """

    patch: int
    merge: int
    frames: int

    @property
    def multiple(self) -> int:
        """Side of a token in pixels."""
        return self.patch * self.merge

    def grid(self, height: int, width: int) -> tuple[int, int]:
        """(H, W) tokens of a frame.

        Raises:
            ValueError: If the sides are not multiples of a token.
        """
        if height % self.multiple or width % self.multiple or not height * width:
            raise ValueError(f"frames must have sides that are multiples of {self.multiple} pixels")
        return height // self.multiple, width // self.multiple


def pair_frames(pixels: NDArray[np.uint8], frames: int) -> NDArray[np.uint8]:
    """Group consecutive frames; the last one is repeated until the last group is full.

    Args:
        pixels: (F, h, w, 3).
        frames: Frames of a group.

    Returns:
        (T, frames, h, w, 3).
    """
    lacking = -len(pixels) % frames
    if lacking:
        pixels = np.concatenate([pixels, pixels[-1:].repeat(lacking, axis=0)])
    return pixels.reshape(-1, frames, *pixels.shape[1:])


def mean_timestamps(timestamps: NDArray[np.float64], frames: int) -> NDArray[np.float64]:
    """Seconds of every temporal position, as Qwen3-VL writes them: halfway through its frames.

    Args:
        timestamps: (F,) of the frames.
        frames: Frames of a group; the last frame is repeated as by `pair_frames`.

    Returns:
        (T,) float64: the mean of the first and the last frame of every group.
    """
    lacking = -len(timestamps) % frames
    groups = np.append(timestamps, timestamps[-1:].repeat(lacking)).reshape(-1, frames)
    middles: NDArray[np.float64] = (groups[:, 0] + groups[:, -1]) / 2
    return middles


def patches_by_row(values: Tensor, grid: tuple[int, int], merge: int) -> Tensor:
    """Reorder patches from the towers' order to raster order of the frame.

    Args:
        values: (T * P, C), the patches of a token together, tokens in raster order.
        grid: (H, W) tokens.
        merge: Side of a token in patches.

    Returns:
        (T, P, C), patches row by row over the whole frame.
    """
    split = values.reshape(-1, *grid, merge, merge, values.shape[-1])
    return split.transpose(2, 3).flatten(1, 4)


def to_patches(values: Tensor, layout: PatchLayout) -> Tensor:
    """Cut normalised frames into patches, token by token in raster order.

    Args:
        values: (T, frames, 3, h, w) float32.
        layout: Sizes of patches and tokens.

    Returns:
        (T * H * W * merge * merge, 3 * frames * patch * patch) float32; the patches of a token
        follow each other; inside a patch colour, frame, row, column.
    """
    num_positions, num_frames, colours, height, width = values.shape
    rows, columns = layout.grid(height, width)
    sides = (rows, layout.merge, layout.patch, columns, layout.merge, layout.patch)
    cut = values.view(num_positions, num_frames, colours, *sides)
    ordered = cut.permute(0, 3, 6, 4, 7, 2, 1, 5, 8)
    return ordered.reshape(-1, colours * num_frames * layout.patch**2)
