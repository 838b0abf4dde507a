"""Which device and which precision `"auto"` means."""

from __future__ import annotations

from typing import Any

import torch


def resolve_device(device: str) -> torch.device:
    """The device that `"auto"` means in this process."""
    if device == "auto":
        device = "cuda" if torch.cuda.is_available() else "cpu"
    if device == "cuda" and not torch.cuda.is_available():
        raise ValueError(
            "model.device is cuda, but this process sees no GPU; set model.device to cpu "
            "(where a pool reserves GPUs, auto is cuda)"
        )
    return torch.device(device)


def resolve_dtype(dtype: str, device: str, config: dict[str, Any]) -> str:
    """The dtype that `"auto"` means: the checkpoint's own on a GPU, float32 on a CPU.

    A driver without a GPU plans for workers that have one, so `device="cuda"` needs no GPU here.
    """
    if dtype != "auto":
        return dtype
    if device == "cpu" or (device == "auto" and not torch.cuda.is_available()):
        return "float32"
    own = config.get("dtype") or config.get("torch_dtype")
    own = own or (config.get("text_config") or {}).get("dtype") or "float32"
    return str(own).removeprefix("torch.")
