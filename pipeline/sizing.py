"""Choose the sizes of the pools for a cluster.

A pipeline is as fast as its slowest stage, so every additional worker goes to the stage with the
most work per worker.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from types import MappingProxyType
from typing import Any, cast

from pipeline.clips import Pools
from pipeline.resources.pools import ActorPool, PoolError, preflight

Node = Mapping[str, float]

# Relative work of the stages where nothing has been measured: the answers of a sweep take longest.
UNMEASURED: Mapping[str, float] = MappingProxyType({"decode": 1.0, "compress": 1.0, "answer": 2.0})
_ACTORS = ("compress", "answer")
# Of the memory that Ray gives to workers, what models may take.
_MEMORY_SHARE = 0.8


@dataclass(frozen=True)
class Work:
    """Amount of work of a job per stage.

    Attributes:
        seconds: Stage -> busy seconds of all its clips in one worker; a stage that the job does not
            have is not in it. Only their ratios matter.
        num_clips: Clips to run; more actors than clips are of no use.
        actor_bytes: Stage -> memory of one actor; 0 or absent if it is not known.
        gpus: Whether the actors use GPUs where the cluster has some.
    """

    seconds: Mapping[str, float]
    num_clips: int
    actor_bytes: Mapping[str, float] = field(default_factory=dict)
    gpus: bool = True


@dataclass(frozen=True)
class AutoPools(Pools):
    """Pools that are chosen when the cluster is known (`pools: auto`).

    Attributes:
        work: Work of the job; `None` for fixed pools.
    """

    work: Work | None = None


def pools_for(pools: Pools, nodes: Sequence[Node]) -> Pools:
    """The pools of a job on this cluster: those of the recipe, or automatically sized ones."""
    if isinstance(pools, AutoPools) and pools.work is not None:
        return suggest_pools(nodes, pools.work)
    return pools


def suggest_pools(nodes: Sequence[Node], work: Work) -> Pools:
    """Distribute the resources of a cluster to the stages.

    With GPUs, every GPU goes to an actor pool (a single GPU is shared by both), and decode tasks
    get the CPUs. Without GPUs, the CPUs go to all stages, limited by the memory of actors.

    Args:
        nodes: Resources of every live node, as Ray names them: `CPU`, `GPU`, `memory` in bytes.
        work: Work of the job.

    Returns:
        Pools that pass `preflight` on these nodes.

    Raises:
        PoolError: If not even one worker of each stage fits.
    """
    names = [name for name in _ACTORS if name in work.seconds]
    on_gpus = work.gpus and sum(math.floor(node.get("GPU", 0)) for node in nodes) > 0
    actors = (_on_gpus if on_gpus else _on_cpus)(nodes, work, names)
    while True:
        pools = Pools(**cast("dict[str, Any]", actors))
        try:
            preflight(pools, nodes, [name for name in ("decode", *names) if name in work.seconds])
            return pools
        except PoolError:  # fewer actors may fit
            largest = max(names, key=lambda name: actors[name].least)
            if (least := actors[largest].least) > 1:
                actors[largest] = replace(actors[largest], num_actors=least - 1)
            elif any(pool.num_cpus for pool in actors.values()):
                # One actor of each stage, without reserved CPUs: they share those of the machine.
                actors = {name: replace(pool, num_cpus=0) for name, pool in actors.items()}
            else:
                raise


def _on_gpus(nodes: Sequence[Node], work: Work, names: Sequence[str]) -> dict[str, ActorPool]:
    """Assign GPUs to the actor pools by their work, and CPUs to decoding."""
    num_gpus = sum(math.floor(node.get("GPU", 0)) for node in nodes)
    num_cpus = sum(node.get("CPU", 0) for node in nodes)
    if num_gpus < len(names):
        share = math.floor(100 / len(names)) / 100
        return {name: ActorPool(1, num_gpus=share) for name in names}
    actors = _shared_out(num_gpus, names, work)
    # Actors also reserve a CPU, unless none would be left for decoding.
    cpus = 1 if num_cpus >= 2 * sum(actors.values()) + 1 else 0
    return {name: ActorPool(count, num_gpus=1, num_cpus=cpus) for name, count in actors.items()}


def _on_cpus(nodes: Sequence[Node], work: Work, names: Sequence[str]) -> dict[str, ActorPool]:
    """Assign CPUs to the actor pools by their work, and the rest to decoding."""
    num_cpus = sum(math.floor(node.get("CPU", 0)) for node in nodes)
    if num_cpus <= len(names) + 1:
        return {name: ActorPool() for name in names}
    workers = _shared_out(num_cpus, ["decode", *names], work)
    memory = _MEMORY_SHARE * sum(node.get("memory", math.inf) for node in nodes)
    actors = {}
    for name in names:
        each, most = work.actor_bytes.get(name, 0), workers[name]
        if each and memory < math.inf:
            most = max(1, int(memory / len(names) / each))
        actors[name] = ActorPool(min(workers[name], most), num_cpus=1)
    return actors


def _shared_out(num_workers: int, names: Sequence[str], work: Work) -> dict[str, int]:
    """Workers per stage: one each, and further ones where the work per worker is largest."""
    found = dict.fromkeys(names, 1)
    for _ in range(num_workers - len(names)):
        open_ = [name for name in names if found[name] < max(1, work.num_clips)]
        if not open_:
            break
        found[max(open_, key=lambda name: work.seconds.get(name, 0) / found[name])] += 1
    return found
