"""Copy small arrays of the host to a device, as few copies as possible."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from numpy.typing import ArrayLike
from torch import Tensor


def upload(array: ArrayLike | Tensor, device: torch.device) -> Tensor:
    """Copy an array to the device without waiting for it; nothing is copied on the host.

    A GPU reads memory of the host by itself only where its pages are pinned.
    """
    tensor = array if isinstance(array, Tensor) else torch.from_numpy(np.ascontiguousarray(array))
    if device.type == "cuda" and tensor.device.type == "cpu":
        tensor = tensor.pin_memory()
    return tensor.to(device, non_blocking=True)


def upload_together(arrays: Sequence[ArrayLike], device: torch.device) -> list[Tensor]:
    """Copy arrays of whole numbers to the device in one piece.

    Args:
        arrays: Of any shapes.
        device: Where to.

    Returns:
        int64 tensors of the same shapes, views of one buffer.
    """
    whole = [np.asarray(array, dtype=np.int64) for array in arrays]
    flat = upload(np.concatenate([array.ravel() for array in whole]), device)
    parts = flat.split_with_sizes([array.size for array in whole])
    return [part.view(array.shape) for part, array in zip(parts, whole, strict=True)]
