"""Pixel normalisation, from a checkpoint's preprocessor files."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from tango_core.models.checkpoints.directory import Checkpoint


@dataclass(frozen=True)
class Normalisation:
    """Normalisation (pixel * scale - mean) / std per colour channel.

    Attributes:
        scale: Factor that maps pixels to [0, 1].
        mean: Mean per channel.
        std: Standard deviation per channel.
    """

    scale: float
    mean: tuple[float, ...]
    std: tuple[float, ...]

    def on(self, device: torch.device) -> tuple[Tensor, Tensor]:
        """Mean and deviation for images with the colour in the third-last dimension.

        Returns:
            Two tensors of (3, 1, 1) float32.
        """
        mean, std = torch.tensor((self.mean, self.std), device=device).view(2, -1, 1, 1)
        return mean, std


class NormalisedPixels:
    """Turns whole frames into the input of a tower.

    Args:
        normalisation: The checkpoint's normalisation.
        device: Device of the frames and the tower.
        dtype: Data type of the tower.
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
    """Read the normalisation from the preprocessor files, with defaults for missing values."""
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
