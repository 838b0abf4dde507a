"""Copy small arrays to a device, and results to the host, in as few copies as possible."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from numpy.typing import ArrayLike
from torch import Tensor


def upload(array: ArrayLike | Tensor, device: torch.device) -> Tensor:
    """Copy an array to the device without waiting for the copy to finish.

    A GPU reads host memory asynchronously only if its pages are pinned.
    """
    tensor = array if isinstance(array, Tensor) else torch.from_numpy(np.ascontiguousarray(array))
    if device.type == "cuda" and tensor.device.type == "cpu":
        tensor = tensor.pin_memory()
    return tensor.to(device, non_blocking=True)


def upload_together(arrays: Sequence[ArrayLike], device: torch.device) -> list[Tensor]:
    """Copy integer arrays to the device in a single transfer.

    Args:
        arrays: Integer arrays of any shapes.
        device: Target device.

    Returns:
        int64 tensors of the same shapes, views of one buffer.
    """
    whole = [np.asarray(array, dtype=np.int64) for array in arrays]
    flat = upload(np.concatenate([array.ravel() for array in whole]), device)
    parts = flat.split_with_sizes([array.size for array in whole])
    return [part.view(array.shape) for part, array in zip(parts, whole, strict=True)]


def download_together(tensors: Sequence[Tensor]) -> list[Tensor]:
    """Copy tensors to the host in a single transfer with one synchronisation.

    Args:
        tensors: Tensors of any shapes and dtypes, on one device or on the host.

    Returns:
        Tensors with the same values in host memory: copies from the device are views of one buffer;
        tensors already on the host are returned unchanged.
    """
    found = list(tensors)
    # Wide types first, so that every part is aligned for its type.
    on_device = [index for index, tensor in enumerate(found) if tensor.device.type != "cpu"]
    on_device.sort(key=lambda index: -found[index].element_size())
    if not on_device:
        return found
    # Contiguous rows; `as_strided` because an expanded one-element tensor keeps stride 0.
    rows = [found[index].detach().contiguous() for index in on_device]
    flat = [row.as_strided((row.numel(),), (1,)).view(torch.uint8) for row in rows]
    parts = torch.cat(flat).cpu().split_with_sizes([len(one) for one in flat])
    for index, part in zip(on_device, parts, strict=True):
        found[index] = part.view(found[index].dtype).view(found[index].shape)
    return found
