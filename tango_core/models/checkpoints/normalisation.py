"""Pixel normalisation, from a checkpoint's preprocessor files."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from tango_core.models.checkpoints.directory import Checkpoint


@dataclass(frozen=True)
class Normalisation:
    """(pixel * scale - mean) / std, colour by colour.

    Attributes:
        scale: Factor that brings pixels to [0, 1].
        mean: Per colour.
        std: Per colour.
    """

    scale: float
    mean: tuple[float, ...]
    std: tuple[float, ...]

    def on(self, device: torch.device) -> tuple[Tensor, Tensor]:
        """Mean and deviation for images whose third dimension from behind is the colour.

        Returns:
            Two tensors of (3, 1, 1) float32.
        """
        mean, std = torch.tensor((self.mean, self.std), device=device).view(2, -1, 1, 1)
        return mean, std


class NormalisedPixels:
    """Turns whole frames into the input of a tower.

    Args:
        normalisation: Of the checkpoint.
        device: Of the frames and the tower.
        dtype: Of the tower.
    """

    def __init__(
        self, normalisation: Normalisation, device: torch.device, dtype: torch.dtype
    ) -> None:
        self._scale = normalisation.scale
        self._mean, self._std = normalisation.on(device)
        self._dtype = dtype

    def __call__(self, pixels: Tensor) -> Tensor:
        """(f, h, w, 3) uint8 -> (f, 3, h, w) in the dtype of the tower; computed in float32."""
        values = pixels.permute(0, 3, 1, 2).float() * self._scale
        return ((values - self._mean) / self._std).to(self._dtype)


def read_normalisation(
    checkpoint: Checkpoint, default_mean: tuple[float, ...], default_std: tuple[float, ...]
) -> Normalisation:
    """What the preprocessor files say; the defaults where they do not say."""
    nested = checkpoint.read_json("processor_config.json") or {}
    content: dict[str, Any] = (
        checkpoint.read_json("video_preprocessor_config.json")
        or checkpoint.read_json("preprocessor_config.json")
        or nested.get("video_processor")
        or nested.get("image_processor")
        or {}
    )
    mean = content.get("image_mean") or default_mean
    std = content.get("image_std") or default_std
    scale = float(content.get("rescale_factor") or 1 / 255)
    return Normalisation(scale, tuple(mean), tuple(std))
