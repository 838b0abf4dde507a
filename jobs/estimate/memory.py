"""Memory of one actor: weights, activations, keys and values at the longest prompt.

Weights are exact where the checkpoint is on this machine. Activations are the widest layer's, which
is what the stock kernels keep at once; allocators and CUDA itself take about a gibibyte more. What
`auto` means for batches follows from what the weights leave of the GPU, or of the share of it that
the actor reserves (`room.py`). On a GPU that this machine lacks, `answer.batch_tokens: auto` counts
with its fewest tokens, and frames are encoded as if there were room for them.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import torch
from torch import nn

from jobs.estimate.room import Room
from jobs.estimate.tokens import grid_of
from tango_core.models.base import LLMShape, ModelSpec, VisionEncoder
from tango_core.models.language import budget
from tango_core.models.placement import bytes_of, modules_of
from tango_core.models.towers.frame_batches import fitting_batch, largest_batch


@dataclass(frozen=True)
class ActorMemory:
    """Bytes of one actor of a stage.

    Attributes:
        weights: Of the half of the model that it holds.
        activations: While it works on its largest input.
        kv: Keys and values of all prompts that are worked on at once; 0 for an encoder.
        room: What the actor may have of its GPUs; `None` on a CPU, and where it is not known.
        refused: Why the actor will not start, in one line; `None` if it will.
    """

    weights: float
    activations: float
    kv: float = 0.0
    room: float | None = None
    refused: str | None = None

    @property
    def total(self) -> float:
        """All together."""
        return self.weights + self.activations + self.kv


@dataclass(frozen=True)
class Questions:
    """What the answer actors of a job are asked.

    Attributes:
        longest: Tokens of the longest prompt, its reply left out.
        reply: Tokens that a reply may have.
        together: Questions about one clip that share the computation of it; 1 for none.
        prompts: Of the whole job.
        batch_tokens: Tokens that are worked on at once; `None` is `auto`.
    """

    longest: int
    reply: int = 16
    together: int = 1
    prompts: int = 1
    batch_tokens: int | None = None


def encoder_memory(encoder: VisionEncoder, device: str, room: Room | None = None) -> ActorMemory:
    """Of an actor with the vision half.

    Args:
        encoder: Loaded on the device `meta`.
        device: Where the job will have it; `"auto"` is decided as on this machine.
        room: What the actor may have; `None` if that is not known.
    """
    modules = modules_of(encoder)
    weights = bytes_of(modules)
    spec = encoder.spec
    frames = spec.frames
    height, width = frames.size or _largest_size(frames.max_pixels or frames.multiple**2)
    patches = [_patches(module, height, width) for one in modules for module in one.modules()]
    at_once = largest_batch(spec.encode_batch, device, frames.num_frames)
    frame_bytes = encoder.frame_bytes(height, width)
    if room is not None and frame_bytes is not None and spec.encode_batch == "auto":
        clip = 3 * height * width * frames.num_frames  # it is uploaded whole, as bytes
        at_once = fitting_batch(at_once, frame_bytes, room.left(weights, modules) - clip)
    rows = max(patches, default=1) * at_once
    itemsize = torch.empty((), dtype=getattr(torch, spec.dtype)).element_size()
    pixels = 4.0 * 3 * height * width * frames.num_frames
    # Tokens of one row are small beside the rest. Those of several rows (DeepStack) are not, and
    # are there once more while they are stored.
    rows_of_token = 1 + spec.companions if spec.companions else 0
    num_positions, grid = grid_of(spec)
    features = 2.0 * num_positions * grid[0] * grid[1] * rows_of_token * spec.llm.hidden_size
    return ActorMemory(
        weights=weights,
        activations=(rows * _widest(modules) + features) * itemsize + pixels,
        room=None if room is None else room.total,
    )


def language_memory(
    model: nn.Module | None,
    spec: ModelSpec,
    asked: Questions,
    device: str,
    room: Room | None = None,
) -> ActorMemory:
    """Of an actor with the language half.

    Args:
        model: On the device `meta`; `None` counts the weights from the shape alone.
        spec: From `describe_model`.
        asked: What it answers.
        device: Where the job will have it; `"auto"` is decided as on this machine.
        room: What the actor may have; `None` if that is not known.
    """
    shape = spec.llm
    itemsize = torch.empty((), dtype=getattr(torch, spec.dtype)).element_size()
    weights = bytes_of([model]) if model is not None else _weights(shape) * itemsize
    per_token = 2 * shape.num_layers * shape.num_kv_heads * shape.head_dim * itemsize
    per_row = budget.row_bytes(shape.hidden_size, shape.intermediate_size, itemsize)
    batch_tokens = asked.batch_tokens
    if batch_tokens is None and (room is not None or _on_gpu(device)):
        left = 0 if room is None else room.left(weights, [] if model is None else [model])
        batch_tokens = budget.on_gpu(left, per_token + per_row)
    elif batch_tokens is None:
        batch_tokens = budget.on_cpu(int(_layer(shape) * itemsize))
    need = asked.longest + asked.reply
    held = budget.held_tokens(batch_tokens, need, asked.together, asked.prompts)
    prompts = held // need
    # Prompts that share a prefix compute it once; what they have of their own is short.
    passes = -(-prompts // min(asked.together, budget.MAX_BATCH))
    return ActorMemory(
        weights=weights,
        activations=passes * asked.longest * per_row + 4.0 * shape.vocab_size * prompts,
        kv=float(held * per_token),
        room=None if room is None else room.total,
    )


def _on_gpu(device: str) -> bool:
    """Whether an actor computes on a GPU."""
    return device != "cpu" and (device != "auto" or torch.cuda.is_available())


def _weights(shape: LLMShape) -> float:
    """Parameters of a stock decoder, untied output."""
    return shape.num_layers * _layer(shape) + 2.0 * shape.vocab_size * shape.hidden_size


def _layer(shape: LLMShape) -> int:
    """Parameters of a stock layer with grouped queries and a gated MLP."""
    attention = shape.hidden_size * shape.head_dim * 2 * (shape.num_heads + shape.num_kv_heads)
    return attention + 3 * shape.hidden_size * shape.intermediate_size


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
