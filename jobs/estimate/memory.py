"""Memory of one actor: weights, activations, keys and values at the longest prompt.

Weights are exact where the checkpoint is on this machine. Activations are the widest layer's, which
is what the stock kernels keep at once; allocators and CUDA itself take about a gibibyte more.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import torch
from torch import nn

from tango_core.models.base import LLMShape, ModelSpec, VisionEncoder
from tango_core.models.frame_batches import largest_batch
from tango_core.models.language.native import MAX_BATCH
from tango_core.models.weight_bytes import bytes_of, modules_of


@dataclass(frozen=True)
class ActorMemory:
    """Bytes of one actor of a stage.

    Attributes:
        weights: Of the half of the model that it holds.
        activations: While it works on its largest input.
        kv: Keys and values of the longest prompt; 0 for an encoder.
    """

    weights: float
    activations: float
    kv: float = 0.0

    @property
    def total(self) -> float:
        """All together."""
        return self.weights + self.activations + self.kv


def encoder_memory(encoder: VisionEncoder) -> ActorMemory:
    """Of an actor with the vision half.

    Args:
        encoder: Loaded on the device `meta`.
    """
    modules = modules_of(encoder)
    spec = encoder.spec
    frames = spec.frames
    height, width = frames.size or _largest_size(frames.max_pixels or frames.multiple**2)
    patches = [_patches(module, height, width) for one in modules for module in one.modules()]
    at_once = largest_batch(spec.encode_batch, spec.device, frames.num_frames)
    rows = max(patches, default=1) * at_once
    itemsize = torch.empty((), dtype=getattr(torch, spec.dtype)).element_size()
    pixels = 4.0 * 3 * height * width * frames.num_frames
    return ActorMemory(
        weights=bytes_of(modules),
        activations=rows * _widest(modules) * itemsize + pixels,
    )


def language_memory(
    model: nn.Module | None, spec: ModelSpec, longest: int, questions: int
) -> ActorMemory:
    """Of an actor with the language half.

    Args:
        model: On the device `meta`; `None` counts the weights from the shape alone.
        spec: From `describe_model`.
        longest: Tokens of the longest prompt.
        questions: About one clip at most: a batch of them repeats the keys and values of the clip.
    """
    shape = spec.llm
    itemsize = torch.empty((), dtype=getattr(torch, spec.dtype)).element_size()
    weights = bytes_of([model]) if model is not None else _weights(shape) * itemsize
    per_token = 2 * shape.num_layers * shape.num_kv_heads * shape.head_dim * itemsize
    copies = 1 if questions <= 1 else 1 + min(questions, MAX_BATCH)
    # Residual stream, its norm and both inner matrices of the gated MLP.
    width = 2 * shape.hidden_size + 2 * shape.intermediate_size
    return ActorMemory(
        weights=weights,
        activations=longest * width * itemsize + 4.0 * shape.vocab_size,
        kv=float(copies * longest * per_token),
    )


def _weights(shape: LLMShape) -> float:
    """Parameters of a stock decoder with grouped queries and a gated MLP, untied output."""
    attention = shape.hidden_size * shape.head_dim * 2 * (shape.num_heads + shape.num_kv_heads)
    mlp = 3 * shape.hidden_size * shape.intermediate_size
    return shape.num_layers * (attention + mlp) + 2.0 * shape.vocab_size * shape.hidden_size


def _widest(modules: Iterable[nn.Module]) -> int:
    """Features of the widest linear layer."""
    layers = (layer for module in modules for layer in module.modules())
    return max((layer.out_features for layer in layers if isinstance(layer, nn.Linear)), default=1)


def _patches(module: nn.Module, height: int, width: int) -> int:
    """Patches of a frame, from the convolution that cuts it; 0 for any other module."""
    if not isinstance(module, (nn.Conv2d, nn.Conv3d)) or module.stride[-1] < 2:
        return 0
    return (height // module.stride[-2]) * (width // module.stride[-1])


def _largest_size(max_pixels: int) -> tuple[int, int]:
    """A square of the largest area."""
    side = max(1, int(max_pixels**0.5))
    return side, side
