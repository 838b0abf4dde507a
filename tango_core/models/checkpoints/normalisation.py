"""Pixel normalisation, from a checkpoint's preprocessor files."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from tango_core.models.checkpoints.directory import Checkpoint


@dataclass(frozen=True, eq=False)
class Normalisation:
    """Normalisation (pixel * scale - mean) / std per colour channel.

    Attributes:
        scale: Factor that maps pixels to [0, 1].
        mean: (3, 1, 1) float32 mean per channel.
        std: (3, 1, 1) float32 standard deviation per channel.
    """

    scale: float
    mean: Tensor
    std: Tensor

    def __call__(self, pixels: Tensor) -> Tensor:
        """(..., h, w, 3) uint8 -> (..., 3, h, w) float32."""
        return (pixels.movedim(-1, -3).float() * self.scale - self.mean) / self.std


def read_normalisation(
    checkpoint: Checkpoint,
    default_mean: tuple[float, ...],
    default_std: tuple[float, ...],
    device: torch.device,
) -> Normalisation:
    """Read the normalisation from the preprocessor files, with defaults for missing values."""
    nested = checkpoint.read_json("processor_config.json") or {}
    content: dict[str, Any] = (
        checkpoint.read_json("video_preprocessor_config.json")
        or checkpoint.read_json("preprocessor_config.json")
        or nested.get("video_processor")
        or nested.get("image_processor")
        or {}
    )
    values = (content.get("image_mean") or default_mean, content.get("image_std") or default_std)
    mean, std = torch.tensor(values, device=device).view(2, -1, 1, 1)
    return Normalisation(float(content.get("rescale_factor") or 1 / 255), mean, std)
