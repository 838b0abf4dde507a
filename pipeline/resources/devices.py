"""Device of the workers of a pool, by what the pool reserves.

Ray hides the GPUs of a node from no worker that reserves none. Such a worker would find every GPU,
and all of them would take the first one, which Ray believes free. So a pool without `num_gpus`
computes on the CPU, unless the recipe itself says `model.device: cuda`.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from types import MappingProxyType
from typing import TYPE_CHECKING

from pipeline.resources.pools import ActorPool, Pools

if TYPE_CHECKING:
    from pipeline.settings import Settings
    from tango_core.models.base import ModelSpec

# The stages whose actors hold a half of the model, and what they hold.
HALVES: Mapping[str, str] = MappingProxyType(
    {"compress": "vision encoder", "answer": "language model"}
)


def placed(model: ModelSpec, settings: Settings, stage: str) -> ModelSpec:
    """The model as the workers of a stage load it.

    Args:
        model: As the plan has it, its dtype resolved.
        settings: How the job runs.
        stage: `"compress"` or `"answer"`.

    Returns:
        The same with its device: in a loop that of the plan; on Ray one that the pool reserves.
        Several whole GPUs of the answer pool share the layers of the language model.
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
        pool: What they reserve.
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
    """What a user should know before a job starts, a line each: GPUs unused or unreserved.

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
