"""Which device and which precision `"auto"` means."""

from __future__ import annotations

import torch


def resolve_device(device: str) -> torch.device:
    """The device that `"auto"` means in this process."""
    if device == "auto":
        device = "cuda" if torch.cuda.is_available() else "cpu"
    if device == "cuda" and not torch.cuda.is_available():
        raise ValueError(
            "model.device is cuda, but this process sees no GPU; set it to auto or cpu"
        )
    return torch.device(device)


def resolve_dtype(dtype: str, device: str) -> str:
    """The dtype that `"auto"` means: bfloat16 on a GPU, float32 on a CPU.

    A driver without a GPU plans for workers that have one, so `device="cuda"` needs no GPU here. A
    GPU that this process sees and that cannot compute in bfloat16 gets float16.
    """
    if dtype != "auto":
        return dtype
    sees_gpu = torch.cuda.is_available()
    if device == "cpu" or (device == "auto" and not sees_gpu):
        return "float32"
    return "float16" if sees_gpu and torch.cuda.get_device_capability()[0] < 8 else "bfloat16"
