"""Copy small arrays to a device, and results to the host, in as few copies as possible."""

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


def download_together(tensors: Sequence[Tensor]) -> list[Tensor]:
    """Copy tensors to the host, those of a device in one piece, for which it is waited once.

    Args:
        tensors: Of any shapes and dtypes; of one device, or of the host.

    Returns:
        Tensors of the same values in host memory: those that came from the device are views of one
        buffer, those of the host the very same.
    """
    found = list(tensors)
    # Wide types first: then every part begins where its type may begin.
    there = [index for index, tensor in enumerate(found) if tensor.device.type != "cpu"]
    there.sort(key=lambda index: -found[index].element_size())
    if not there:
        return found
    # Numbers side by side; a single one that was expanded counts as that, with a stride of 0.
    rows = [found[index].detach().contiguous() for index in there]
    flat = [row.as_strided((row.numel(),), (1,)).view(torch.uint8) for row in rows]
    parts = torch.cat(flat).cpu().split_with_sizes([len(one) for one in flat])
    for index, part in zip(there, parts, strict=True):
        found[index] = part.view(found[index].dtype).view(found[index].shape)
    return found
