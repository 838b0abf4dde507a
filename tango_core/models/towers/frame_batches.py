"""Transfer frames to the device, and choose how many a tower encodes at once.

A tower processes every frame (Qwen2.5-VL: every pair of frames) independently, so a clip can be
split anywhere. Tokens are equal up to rounding, as the order of sums may depend on the number of
rows. So the batch size is not part of a cache's identity, and `"auto"` uses a power of two that
rarely differs between runs on equal machines.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from tango_core.models.memory_faults import free_memory, is_out_of_memory
from tango_core.models.options import EncodeBatch
from tango_core.ops.transfer import upload

logger = logging.getLogger(__name__)

# Value of "auto" on a CPU, where more frames exceed its caches, and its maximum on accelerators,
# which suffices for full utilisation.
ON_CPU, AT_MOST = 4, 32

# Share of an accelerator's free memory that "auto" uses: estimates are coarse, and other workers
# may use the same accelerator.
_SHARE = 0.5


def largest_batch(setting: EncodeBatch, device: str, num_frames: int) -> int:
    """Maximum number of frames per batch, without considering memory.

    Args:
        setting: `ModelSpec.encode_batch`.
        device: `ModelSpec.device`, or a type of device.
        num_frames: Number of frames of a clip.
    """
    if setting != "auto":
        return min(setting, num_frames)
    cpu = device == "cpu" or (device == "auto" and not torch.cuda.is_available())
    return min(ON_CPU if cpu else AT_MOST, num_frames)


def fitting_batch(size: int, frame_bytes: int, free: int) -> int:
    """Batch size of `"auto"` on an accelerator: `size`, or the largest power of two that fits.

    Args:
        size: `largest_batch`.
        frame_bytes: Memory of the activations of one frame.
        free: Memory that this process can still allocate, in bytes.
    """
    while size > 1 and size * frame_bytes > free * _SHARE:
        size = 1 << ((size - 1).bit_length() - 1)
    return size


@dataclass
class FrameBatches:
    """Runs a tower over a clip, some frames at a time.

    After out of memory, the same frames are retried in smaller batches, and later clips start with
    that size.

    Attributes:
        setting: `ModelSpec.encode_batch`.
        device: Device of the tower.
        shrunk_to: Batch size after out of memory; `None` before.
    """

    setting: EncodeBatch
    device: torch.device
    shrunk_to: int | None = field(default=None, init=False)

    def run(
        self,
        rows: Tensor,
        encode: Callable[[Tensor], dict[str, Tensor]],
        *,
        row_bytes: int,
        frames_per_row: int = 1,
    ) -> dict[str, Tensor]:
        """Encode a clip batch by batch and concatenate the maps.

        Args:
            rows: (N, ...) frames, or groups of frames that belong together, on the device.
            encode: Returns maps of some rows; their first dimension is that of the rows.
            row_bytes: Memory of the activations of one row.
            frames_per_row: Number of frames per row.

        Raises:
            torch.OutOfMemoryError: If not even a single row fits.
        """
        size = self._size(len(rows) * frames_per_row, row_bytes // frames_per_row)
        size = max(1, size // frames_per_row)
        parts: list[dict[str, Tensor]] = []
        done = 0
        while done < len(rows):
            batch = rows[done : done + size]
            try:
                parts.append(encode(batch))
            except Exception as error:
                if not is_out_of_memory(error):
                    raise
                refused = next(iter(str(error).splitlines()), type(error).__name__)
            else:
                done += len(batch)
                continue
            # Outside of `except`: the error holds the tensors of the failed attempt.
            free_memory()
            if size == 1:
                raise torch.OutOfMemoryError(
                    f"{self.device} has no room to encode {frames_per_row} frame(s) ({refused}); "
                    "give the compress pool a larger share of a GPU, or a larger GPU"
                )
            size = len(batch) // 2 or 1
            self.shrunk_to = size * frames_per_row
            logger.warning(
                "%s has no room for %d frames at once; going on with %d (model.encode_batch)",
                self.device,
                len(batch) * frames_per_row,
                self.shrunk_to,
            )
        if len(parts) == 1:
            return parts[0]
        return {name: torch.cat([part[name] for part in parts]) for name in parts[0]}

    def _size(self, num_frames: int, frame_bytes: int) -> int:
        """Frames of a batch."""
        size = largest_batch(self.setting, self.device.type, num_frames)
        if self.setting == "auto":
            free = free_bytes(self.device)
            if free is not None:
                size = fitting_batch(size, frame_bytes, free)
        return size if self.shrunk_to is None else min(size, self.shrunk_to)


def free_bytes(device: torch.device) -> int | None:
    """Memory of an accelerator that this process can allocate; `None` for a CPU.

    Memory that PyTorch has reserved but does not use counts as free. If the process is limited to a
    fraction of the GPU, the result is at most the unused part of this fraction.
    """
    if device.type != "cuda" or not torch.cuda.is_available():
        return None
    free, total = torch.cuda.mem_get_info(device)
    allocated = torch.cuda.memory_allocated(device)
    unused = torch.cuda.memory_reserved(device) - allocated
    share_of = getattr(torch.cuda, "get_per_process_memory_fraction", None)  # since torch 2.7
    share = 1.0 if share_of is None else share_of(device.index)
    return max(0, min(int(free + unused), int(share * total) - int(allocated)))


def upload_clip(
    pixels: NDArray[np.uint8], timestamps: NDArray[np.float64], device: torch.device
) -> tuple[Tensor, Tensor]:
    """Copy frames and their times to a device as bytes, in one transfer.

    Args:
        pixels: (..., h, w, 3) uint8, read-only or not.
        timestamps: (T,) float64.
        device: Where they go; on a CPU they are copied, because the input may be read-only.

    Returns:
        Pixels and timestamps in the same shapes.
    """
    # Times first, because float64 must be aligned to 8 bytes.
    times = np.ascontiguousarray(timestamps, np.float64).view(np.uint8)
    moved = upload(np.concatenate([times, pixels.ravel()]), device)
    # A copy, so that the times do not keep the pixels in memory.
    seconds = moved[: len(times)].view(torch.float64).clone()
    return moved[len(times) :].view(pixels.shape), seconds
