"""Both halves of a published geometry with random weights, loaded as in a job.

The checkpoint is written as on the hub, with zeros that take no room, so that reading 16 GB costs
seconds; the weights are drawn on the device afterwards.
"""

from __future__ import annotations

import json
import math
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn
from transformers import SiglipVisionConfig, SiglipVisionModel

from tango_core.models import ModelSpec, describe_model, load_encoder, load_language_model
from tango_core.models.placement import modules_of
from tango_core.types import VideoFrames
from tests.gpu.random_weights import GEOMETRIES, write_random_checkpoint


@contextmanager
def geometry(name: str, *, shrink: int = 1, drawn: bool = False) -> Iterator[Path]:
    """Directory of a checkpoint, until the block is over.

    Args:
        name: Of `GEOMETRIES`.
        shrink: So many times smaller.
        drawn: Whether the weights are drawn now; otherwise they are zeros.
    """
    with tempfile.TemporaryDirectory(prefix="tango-gpu-") as folder:
        path = Path(folder) / name
        write_random_checkpoint(name, path, shrink=shrink, seed=0 if drawn else None)
        yield path


def described(
    name: str, path: Path, device: torch.device, dtype: str, num_frames: int, **options: Any
) -> ModelSpec:
    """The model of a directory."""
    model, where = GEOMETRIES[name].model, device.type
    return describe_model(
        model, str(path), device=where, dtype=dtype, num_frames=num_frames, **options
    )


def write_pooling_head(path: Path, folder: Path) -> Path:
    """A SigLIP with a pooling head, of the width of a LLaVA checkpoint's tower."""
    vision = json.loads((path / "config.json").read_text())["vision_config"]
    config = SiglipVisionConfig(**{**vision, "num_hidden_layers": 1, "vision_use_head": True})
    torch.manual_seed(0)
    SiglipVisionModel(config).save_pretrained(folder)
    return folder


def loaded_encoder(spec: ModelSpec) -> Any:
    """The vision half with weights drawn on its device."""
    return drawn(load_encoder(spec))


def loaded_language_model(spec: ModelSpec) -> Any:
    """The language half with weights drawn on its device; no reply ends before its bound."""
    model = drawn(load_language_model(spec))
    model.engine.eos_ids = frozenset()
    return model


def drawn(half: Any) -> Any:
    """Spread weights so that a layer keeps the size of its input, as `random_weights` does."""
    with torch.no_grad():
        for root in modules_of(half):
            for module in root.modules():
                for name, value in module.named_parameters(recurse=False):
                    _draw(module, name, value)
    return half


def _draw(module: nn.Module, name: str, value: torch.Tensor) -> None:
    """One parameter, in place."""
    if "Norm" in type(module).__name__:
        value.fill_(1.0 if name == "weight" else 0.0)
    elif value.ndim == 1:
        value.normal_(std=0.1)
    else:
        value.normal_(std=1 / math.sqrt(math.prod(value.shape[1:])))


def noise_frames(spec: ModelSpec, seed: int = 0) -> VideoFrames:
    """Frames of a clip as this model takes them."""
    size = spec.frames.size or (224, 224)
    shape = (spec.frames.num_frames, *size, 3)
    pixels = np.random.default_rng(seed).integers(0, 256, shape, dtype=np.uint8)
    return VideoFrames(pixels, np.arange(shape[0], dtype=np.float64))
