"""Memory of one actor: weights, activations, keys and values at the longest prompt.

Weights are exact where the checkpoint is on this machine. Activations are the widest layer's, which
is what the stock kernels keep at once; allocators and CUDA itself take about a gibibyte more. On a
GPU, `answer.batch_tokens: auto` counts with its fewest tokens, and frames are encoded as if there
were room for them.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import nn

from jobs.estimate.work import grid_of
from tango_core.models.base import LLMShape, ModelSpec, VisionEncoder
from tango_core.models.language import batching
from tango_core.models.placement import bytes_of, modules_of
from tango_core.models.towers.encoder import largest_batch


@dataclass(frozen=True)
class ActorMemory:
    """Bytes of one actor of a stage.

    Attributes:
        weights: Of the half of the model that it holds.
        activations: While it works on its largest input.
        kv: Keys, values and recurrent states of all prompts that are worked on at once; 0 for an
            encoder.
    """

    weights: float
    activations: float
    kv: float = 0.0

    @property
    def total(self) -> float:
        """All together."""
        return self.weights + self.activations + self.kv


def encoder_memory(encoder: VisionEncoder, device: str) -> ActorMemory:
    """Of an actor with the vision half.

    Args:
        encoder: Loaded on the device `meta`.
        device: Where the job will have it; `"auto"` is decided as on this machine.
    """
    modules = modules_of(encoder)
    layers = [layer for one in modules for layer in one.modules()]
    spec = encoder.spec
    frames = spec.frames
    side = max(1, int((frames.max_pixels or frames.multiple**2) ** 0.5))
    height, width = frames.size or (side, side)
    # Patches of a frame, from the convolution that cuts it.
    patches = [
        (height // layer.stride[-2]) * (width // layer.stride[-1])
        for layer in layers
        if isinstance(layer, (nn.Conv2d, nn.Conv3d)) and layer.stride[-1] >= 2
    ]
    widest = max((one.out_features for one in layers if isinstance(one, nn.Linear)), default=1)
    at_once = largest_batch(spec.encode_batch, device, frames.num_frames)
    rows = max(patches, default=1) * at_once
    itemsize = torch.empty((), dtype=getattr(torch, spec.dtype)).element_size()
    pixels = 4.0 * 3 * height * width * frames.num_frames
    # Tokens of one row are small beside the rest. Those of several rows (DeepStack) are not, and
    # are there once more while they are stored.
    rows_of_token = 1 + spec.companions if spec.companions else 0
    num_positions, grid = grid_of(spec)
    features = 2.0 * num_positions * grid[0] * grid[1] * rows_of_token * spec.llm.hidden_size
    return ActorMemory(bytes_of(modules), (rows * widest + features) * itemsize + pixels)


def language_memory(
    model: nn.Module | None,
    spec: ModelSpec,
    device: str,
    *,
    longest: int,
    reply: int = 16,
    together: int = 1,
    prompts: int = 1,
    batch_tokens: int | None = None,
) -> ActorMemory:
    """Estimate the memory of an actor with the language half.

    Args:
        model: On the device `meta`; `None` counts the weights from the shape alone.
        spec: From `describe_model`.
        device: Where the job will have it; `"auto"` is decided as on this machine.
        longest: Tokens of the longest prompt, its reply left out.
        reply: Tokens that a reply may have.
        together: Questions about one clip that share the computation of it; 1 for none.
        prompts: Prompts of the whole job.
        batch_tokens: Tokens per batch; `None` is `auto`.
    """
    shape = spec.llm
    itemsize = torch.empty((), dtype=getattr(torch, spec.dtype)).element_size()
    weights = bytes_of([model]) if model is not None else _parameters(shape) * itemsize
    per_token = 2 * len(shape.full_layers) * shape.num_kv_heads * shape.head_dim * itemsize
    per_row = batching.row_bytes(shape.hidden_size, shape.intermediate_size, itemsize)
    if batch_tokens is None:
        on_gpu = device != "cpu" and (device != "auto" or torch.cuda.is_available())
        on_cpu = batching.on_cpu(shape.weights_of(0) * itemsize)
        batch_tokens = batching.on_gpu(0, per_token + per_row) if on_gpu else on_cpu
    need = longest + reply
    held = batching.held_tokens(batch_tokens, need, together, prompts)
    at_once = held // need
    # Prompts that share a prefix compute it once; what they have of their own is short.
    passes = -(-at_once // min(together, batching.MAX_BATCH))
    return ActorMemory(
        weights=weights,
        activations=passes * longest * per_row + 4.0 * shape.vocab_size * at_once,
        kv=float(held * per_token + at_once * shape.state_bytes(itemsize)),
    )


def _parameters(shape: LLMShape) -> float:
    """Of a stock decoder with an untied output."""
    layers = sum(map(shape.weights_of, range(shape.num_layers)))
    return layers + 2.0 * shape.vocab_size * shape.hidden_size
