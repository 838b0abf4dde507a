"""What the GPUs of an actor have for it, as `pipeline/resources/gpu_memory.py` will hold it to it.

Only the GPUs of this machine can be asked. Those of a cluster count as if they were like these.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import nn

from pipeline.resources.gpu_memory import raise_if_no_room, room_on, spread_weights
from pipeline.resources.pools import ActorPool
from tango_core.models.placement import resolve_devices


@dataclass(frozen=True)
class Room:
    """The GPUs of an actor.

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
        found = room.weights(weights, modules)
        raise_if_no_room(stage, pool, found, torch.cuda.mem_get_info)
    except ValueError as error:
        return str(error)
    return None
