"""The one transfer of a clip from host to device."""

from __future__ import annotations

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor


def upload_clip(
    pixels: NDArray[np.uint8], timestamps: NDArray[np.float64], device: torch.device
) -> tuple[Tensor, Tensor]:
    """Copy frames and their times to a device, as bytes and in one transfer.

    For CUDA the bytes are put in pinned memory first and the host does not wait for the copy:
    kernels that follow on the same stream do. PyTorch keeps the pinned memory for the next clip.

    Args:
        pixels: (..., h, w, 3) uint8, read-only or not.
        timestamps: (T,) float64.
        device: Where they go; on a CPU they are copied, because the input may be read-only.

    Returns:
        Pixels and timestamps in the same shapes.
    """
    # Times first: numbers of eight bytes must begin at a multiple of eight.
    times = np.ascontiguousarray(timestamps, np.float64)
    pinned = device.type == "cuda" and torch.cuda.is_available()
    host = torch.empty(times.nbytes + pixels.nbytes, dtype=torch.uint8, pin_memory=pinned)
    buffer = host.numpy()
    buffer[: times.nbytes] = times.view(np.uint8)
    buffer[times.nbytes :].reshape(pixels.shape)[...] = pixels
    moved = host.to(device, non_blocking=True)
    # A copy, so that the times do not keep the pixels in memory.
    return (
        moved[times.nbytes :].view(pixels.shape),
        moved[: times.nbytes].view(torch.float64).clone(),
    )
