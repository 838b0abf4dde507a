"""Check GPU memory before a half of the model is loaded."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager

import torch
from torch import nn

from pipeline.resources.devices import HALVES
from pipeline.resources.pools import ActorPool, PoolError
from tango_core.models import load_encoder, load_language_model
from tango_core.models.base import ModelSpec
from tango_core.models.placement import bytes_by_name, modules_of, resolve_devices, spread_layers

_GIB = 2**30
# Recommended size of an actor's share relative to its weights.
_BESIDE_WEIGHTS = 1.2
# Memory that CUDA itself uses per process, outside of PyTorch's allocator.
_CONTEXT = _GIB // 2


@contextmanager
def room_for(stage: str, pool: ActorPool, model: ModelSpec | None) -> Iterator[None]:
    """Context manager for loading a half of the model; checks the GPU memory first.

    Args:
        stage: Name of the actor's stage; stages without a half of the model are not checked.
        pool: Pool of the actor.
        model: The model that the actor loads; `None` for a stage without one.

    Raises:
        PoolError: If the weights do not fit into the GPU's memory or the actor's share of it; the
            message names the setting.
    """
    if stage not in HALVES or model is None or not model.device.startswith("cuda"):
        yield
        return
    raise_if_no_room(stage, pool, weights_by_device(stage, model))
    keep_to_share(pool, resolve_devices(model.device))
    try:
        yield
    except torch.OutOfMemoryError as error:  # another actor was quicker
        reason = " ".join(str(error).split())[:200]
        raise PoolError(
            f"the {HALVES[stage]} does not fit into the free memory of its GPU ({reason}); "
            f"raise pools.{stage}.num_gpus, or use a larger GPU"
        ) from None


def keep_to_share(pool: ActorPool, devices: Iterable[torch.device]) -> None:
    """Limit the GPU memory of this process to the share that its pool reserves.

    So workers that share a GPU do not use each other's memory, and batch sizes are chosen from the
    free memory of the share.
    """
    if not 0 < pool.num_gpus < 1:
        return
    for device in devices:
        _, total = torch.cuda.mem_get_info(device)
        share = bytes_of_share(pool, total) / total
        torch.cuda.set_per_process_memory_fraction(share, device.index)


def bytes_of_share(pool: ActorPool, total: int) -> int:
    """Bytes of a GPU that an actor may allocate; for a partial GPU without CUDA's own memory.

    Args:
        pool: Pool of the actor.
        total: Memory of the GPU in bytes.
    """
    if not 0 < pool.num_gpus < 1:
        return total
    return max(0, int(pool.num_gpus * total) - _CONTEXT)


def weights_by_device(stage: str, model: ModelSpec) -> dict[torch.device, int]:
    """Bytes of weights on each device; empty if unknown before loading."""
    load: Callable[..., object] = load_encoder if stage == "compress" else load_language_model
    try:
        modules = modules_of(load(model, device="meta"))
    except Exception:  # loading itself will say what is wrong, and to a family of one's own nothing
        return {}
    return spread_weights(modules, resolve_devices(model.device))


def spread_weights(
    modules: Iterable[nn.Module], devices: Sequence[torch.device]
) -> dict[torch.device, int]:
    """Bytes of weights on each device when a half of a model is spread over them.

    Args:
        modules: Of the half, on any device, `meta` too.
        devices: Those that it is loaded on.
    """
    sizes = bytes_by_name(modules)
    found = dict.fromkeys(devices, 0)
    for name, device in spread_layers(sizes, devices).items():
        found[device] += sizes[name]
    return found


def raise_if_no_room(
    stage: str,
    pool: ActorPool,
    weights: Mapping[torch.device, int],
    memory_of: Callable[[torch.device], tuple[int, int]] = torch.cuda.mem_get_info,
) -> None:
    """Compare weights with the memory of the GPUs.

    Args:
        stage: `"compress"` or `"answer"`.
        pool: Of the actor.
        weights: Device -> bytes.
        memory_of: Device -> (free, total) bytes.

    Raises:
        PoolError: If there is too little.
    """
    half, setting = HALVES[stage], f"pools.{stage}.num_gpus"
    shares = 0 < pool.num_gpus < 1
    for device, wanted in weights.items():
        free, total = memory_of(device)
        if shares and wanted + _CONTEXT > pool.num_gpus * total:
            needed = (_BESIDE_WEIGHTS * wanted + _CONTEXT) / total
            share = math.ceil(100 * min(1.0, needed)) / 100
            raise PoolError(
                f"{setting} is {pool.num_gpus:g}: that is {_gib(int(pool.num_gpus * total))} of a "
                f"GPU of {_gib(total)}, but the weights of the {half} and CUDA itself take "
                f"{_gib(wanted + _CONTEXT)}; raise {setting} to {share:g}, or use a larger GPU"
            )
        if wanted > free:
            more = max(2, int(pool.num_gpus) + 1)
            spread = f"set {setting} to {more}, " if stage == "answer" else ""
            raise PoolError(
                f"{setting} is {pool.num_gpus:g}: the weights of the {half} take {_gib(wanted)}, "
                f"but of the {_gib(total)} of {device} only {_gib(free)} are free; {spread}end "
                "what else is on it, set model.dtype to bfloat16, or use a larger GPU"
            )


def _gib(size: int) -> str:
    """Bytes for messages."""
    return f"{size / _GIB:.1f} GiB"
