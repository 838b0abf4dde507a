"""Choose the device of a pool's workers from the resources that the pool reserves.

Workers that reserve no GPU still see all GPUs of their node, and all of them would use the first
one, which Ray considers free. So a pool without `num_gpus` computes on the CPU, unless the recipe
sets `model.device: cuda`.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from types import MappingProxyType
from typing import TYPE_CHECKING

from pipeline.resources.pools import ActorPool, PoolError

if TYPE_CHECKING:
    from pipeline.clips import Pools
    from pipeline.settings import Settings
    from tango_core.models.base import ModelSpec

# Stage -> half of the model that its actors hold.
HALVES: Mapping[str, str] = MappingProxyType(
    {"compress": "vision encoder", "answer": "language model"}
)


def placed(model: ModelSpec, settings: Settings, stage: str) -> ModelSpec:
    """The model with the device for the workers of a stage.

    Args:
        model: Model of the plan, with its dtype resolved.
        settings: Settings of the executor.
        stage: `"compress"` or `"answer"`.

    Returns:
        The model with the plan's device (local executor) or the device that the pool reserves
        (Ray). If the answer pool reserves several GPUs, they share the language model's layers.
    """
    pool: ActorPool = getattr(settings.pools, stage)
    device = model.device
    if settings.executor == "ray":
        device = device_of(settings.device, pool)
    if stage == "answer" and pool.num_gpus > 1 and device != "cpu":
        device = ",".join(f"cuda:{index}" for index in range(int(pool.num_gpus)))
    return replace(model, device=device)


def device_of(asked: str, pool: ActorPool) -> str:
    """The device of a pool's workers on Ray.

    Args:
        asked: `model.device` of the recipe.
        pool: The pool with its reserved resources.
    """
    if asked != "auto":
        return asked
    return "cuda" if pool.num_gpus > 0 else "cpu"


def reserves_gpus(pools: Pools) -> bool:
    """Whether the workers of any half of the model reserve GPUs."""
    return any(getattr(pools, stage).num_gpus > 0 for stage in HALVES)


def doubts(
    asked: str,
    pools: Pools,
    nodes: Sequence[Mapping[str, float]],
    stages: Sequence[str],
) -> Iterator[str]:
    """Yield warnings about unused or unreserved GPUs before a job starts.

    Args:
        asked: `model.device` of the recipe.
        pools: Workers of each stage.
        nodes: Resources of every live node.
        stages: Names of the stages that the job has.
    """
    num_gpus = sum(node.get("GPU", 0) for node in nodes)
    for stage in stages:
        if stage not in HALVES or asked == "cpu":
            continue
        pool: ActorPool = getattr(pools, stage)
        if pool.num_gpus > 0:
            continue
        setting = f"pools.{stage}.num_gpus"
        if asked == "cuda":
            copies = f"{pool.most} copies" if pool.most > 1 else "a copy"
            yield (
                f"{setting} is 0 and model.device is cuda: {copies} of the {HALVES[stage]} will "
                f"be on GPUs that Ray believes free; set {setting}"
            )
        elif num_gpus > 0 or reserves_gpus(pools):
            counted = f"{num_gpus:g} GPU{'' if num_gpus == 1 else 's'}"
            found = f"the cluster has {counted}" if num_gpus else "another pool reserves GPUs"
            yield (
                f"{setting} is 0: the {HALVES[stage]} runs on the CPU, though {found}; "
                f"set {setting} above 0, or pools to auto"
            )


# Memory that CUDA itself uses per process, outside of PyTorch's allocator.
_CONTEXT = 2**29


@contextmanager
def room_for(stage: str, pool: ActorPool, model: ModelSpec | None) -> Iterator[None]:
    """Context manager for loading a half of the model into the GPU memory that a pool reserves.

    A process that reserves a fraction of a GPU cannot allocate more than that share from then on,
    so workers that share a GPU do not use each other's memory.

    Args:
        stage: Name of the actor's stage.
        pool: Pool of the actor.
        model: The model that the actor loads; `None` for a stage without one.

    Raises:
        PoolError: If the weights do not fit; the message names the setting.
    """
    if stage not in HALVES or model is None or not model.device.startswith("cuda"):
        yield
        return
    import torch

    from tango_core.models.placement import resolve_devices

    for device in resolve_devices(model.device) if 0 < pool.num_gpus < 1 else ():
        _, total = torch.cuda.mem_get_info(device)
        share = max(0.0, pool.num_gpus - _CONTEXT / total)
        torch.cuda.set_per_process_memory_fraction(share, device.index)
    try:
        yield
    except torch.OutOfMemoryError as error:
        reason = " ".join(str(error).split())[:200]
        setting = f"pools.{stage}.num_gpus"
        raise PoolError(
            f"{setting} is {pool.num_gpus:g}, and the {HALVES[stage]} does not fit into that much "
            f"GPU memory ({reason}); raise {setting}, set model.dtype to bfloat16, end what else "
            "is on the GPU, or use a larger one"
        ) from None
