"""Memory of one actor: weights, activations, keys and values at the longest prompt.

Weights are exact where the checkpoint is on this machine. Activations are the widest layer's, which
is what the stock kernels keep at once; allocators and CUDA itself take about a gibibyte more. What
`auto` means for batches follows from what the weights leave of the GPU, or of the share of it that
the actor reserves (`Room`). On a GPU that this machine lacks, `answer.batch_tokens: auto` counts
with its fewest tokens, and frames are encoded as if there were room for them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import nn

from jobs.estimate.sizes import grid_of
from pipeline.resources.gpu_memory import raise_if_no_room, room_on, spread_weights
from pipeline.resources.pools import ActorPool
from tango_core.models.base import LLMShape, ModelSpec, VisionEncoder
from tango_core.models.language import batching
from tango_core.models.placement import bytes_of, modules_of, resolve_devices
from tango_core.models.towers.frame_batches import fitting_batch, largest_batch


@dataclass(frozen=True)
class Room:
    """What the GPUs of an actor have for it, as `pipeline/resources/gpu_memory.py` will see to.

    Only the GPUs of this machine can be asked. Those of a cluster count as if they were like these.

    Attributes:
        free: GPU -> bytes that the actor may have there, those of its weights too.
        beside: Bytes that something else in its process will hold on the first of them.
    """

    free: Mapping[torch.device, int]
    beside: float = 0.0

    @property
    def total(self) -> float:
        """Bytes of all of them."""
        return max(0.0, sum(self.free.values()) - self.beside)

    def weights(self, weights: float, modules: Sequence[nn.Module]) -> dict[torch.device, int]:
        """GPU -> bytes of weights.

        Args:
            weights: Bytes of the half of the model.
            modules: Of the half; none if they cannot be described here.

        Raises:
            ValueError: If there are more GPUs than layers.
        """
        if modules:
            return spread_weights(modules, list(self.free))
        return dict.fromkeys(self.free, int(weights / len(self.free)))

    def left(self, weights: float, modules: Sequence[nn.Module]) -> int:
        """Bytes of the first GPU beside the weights: by these the actor chooses its batches."""
        first, free = next(iter(self.free.items()))
        try:
            held = self.weights(weights, modules)[first]
        except ValueError:  # the job will not start, and `refusal` says why
            return 0
        return max(0, int(free - held - self.beside))


def room_of(device: str, pool: ActorPool, beside: float = 0.0) -> Room | None:
    """The room of an actor.

    Args:
        device: As it loads its half of the model, see `pipeline.resources.devices.placed`.
        pool: Of the actor; in a loop, where nothing is reserved, that of the defaults.
        beside: See `Room`.

    Returns:
        `None` for a CPU, and for GPUs that this machine does not have.
    """
    try:
        devices = resolve_devices(device)
    except ValueError:
        return None
    return Room(room_on(pool, devices), beside) if devices[0].type == "cuda" else None


def refusal(
    stage: str, pool: ActorPool, room: Room, weights: float, modules: Sequence[nn.Module]
) -> str | None:
    """What an actor will say when it finds no room for its weights; `None` if it finds it."""
    try:
        raise_if_no_room(stage, pool, room.weights(weights, modules), torch.cuda.mem_get_info)
    except ValueError as error:
        return str(error)
    return None


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
    layers = [layer for one in modules for layer in one.modules()]
    weights = bytes_of(modules)
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
        activations=(rows * widest + features) * itemsize + pixels,
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
    weights = bytes_of([model]) if model is not None else _parameters(shape) * itemsize
    per_token = 2 * shape.num_layers * shape.num_kv_heads * shape.head_dim * itemsize
    per_row = batching.row_bytes(shape.hidden_size, shape.intermediate_size, itemsize)
    batch_tokens = asked.batch_tokens
    on_gpu = device != "cpu" and (device != "auto" or torch.cuda.is_available())
    if batch_tokens is None and (room is not None or on_gpu):
        left = 0 if room is None else room.left(weights, [] if model is None else [model])
        batch_tokens = batching.on_gpu(left, per_token + per_row)
    elif batch_tokens is None:
        batch_tokens = batching.on_cpu(int(_layer(shape) * itemsize))
    need = asked.longest + asked.reply
    held = batching.held_tokens(batch_tokens, need, asked.together, asked.prompts)
    prompts = held // need
    # Prompts that share a prefix compute it once; what they have of their own is short.
    passes = -(-prompts // min(asked.together, batching.MAX_BATCH))
    return ActorMemory(
        weights=weights,
        activations=passes * asked.longest * per_row + 4.0 * shape.vocab_size * prompts,
        kv=float(held * per_token),
        room=None if room is None else room.total,
    )


def _parameters(shape: LLMShape) -> float:
    """Of a stock decoder with an untied output."""
    return shape.num_layers * _layer(shape) + 2.0 * shape.vocab_size * shape.hidden_size


def _layer(shape: LLMShape) -> int:
    """Parameters of a stock layer with grouped queries and a gated MLP."""
    attention = shape.hidden_size * shape.head_dim * 2 * (shape.num_heads + shape.num_kv_heads)
    return attention + 3 * shape.hidden_size * shape.intermediate_size
