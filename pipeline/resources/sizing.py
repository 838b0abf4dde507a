"""Choose the sizes of the pools for a cluster.

A pipeline is as fast as its slowest stage, so every additional worker goes to the stage with the
most work per worker.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from types import MappingProxyType

from pipeline.clips import Pools
from pipeline.resources.pools import ActorPool, PoolError, TaskPool, preflight

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
    if work.gpus and sum(math.floor(node.get("GPU", 0)) for node in nodes) > 0:
        pools = _on_gpus(nodes, work, names)
    else:
        pools = _on_cpus(nodes, work, names)
    return _that_fit(pools, nodes, work, names)


def _on_gpus(nodes: Sequence[Node], work: Work, names: Sequence[str]) -> Pools:
    """Assign GPUs to the actor pools by their work, and CPUs to decoding."""
    num_gpus = sum(math.floor(node.get("GPU", 0)) for node in nodes)
    num_cpus = sum(node.get("CPU", 0) for node in nodes)
    if num_gpus < len(names):
        share = math.floor(100 / len(names)) / 100
        return _with(Pools(), {name: ActorPool(1, num_gpus=share) for name in names})
    actors = _shared_out(num_gpus, names, work)
    # A thread beside the GPU, unless decoding would be left without.
    cpus = 1 if num_cpus >= 2 * sum(actors.values()) + 1 else 0
    return _with(
        Pools(),
        {name: ActorPool(count, num_gpus=1, num_cpus=cpus) for name, count in actors.items()},
    )


def _on_cpus(nodes: Sequence[Node], work: Work, names: Sequence[str]) -> Pools:
    """Assign CPUs to the actor pools by their work, and the rest to decoding."""
    num_cpus = sum(math.floor(node.get("CPU", 0)) for node in nodes)
    if num_cpus <= len(names) + 1:
        return Pools()
    workers = _shared_out(num_cpus, ["decode", *names], work)
    room = _MEMORY_SHARE * sum(node.get("memory", math.inf) for node in nodes)
    pools = {}
    for name in names:
        each = work.actor_bytes.get(name, 0)
        most = max(1, int(room / len(names) / each)) if each and room < math.inf else workers[name]
        pools[name] = ActorPool(min(workers[name], most), num_cpus=1)
    return _with(Pools(decode=TaskPool(1)), pools)


def _shared_out(num_workers: int, names: Sequence[str], work: Work) -> dict[str, int]:
    """Workers per stage: one each, and further ones where the work per worker is largest."""
    found = dict.fromkeys(names, 1)
    for _ in range(num_workers - len(names)):
        open_ = [name for name in names if found[name] < max(1, work.num_clips)]
        if not open_:
            break
        found[max(open_, key=lambda name: work.seconds.get(name, 0) / found[name])] += 1
    return found


def _that_fit(pools: Pools, nodes: Sequence[Node], work: Work, names: Sequence[str]) -> Pools:
    """The same pools with fewer actors until they fit node by node."""
    while True:
        try:
            preflight(pools, nodes, [name for name in ("decode", *names) if name in work.seconds])
        except PoolError:
            largest = max(names, key=lambda name: _pool(pools, name).least)
            pool = _pool(pools, largest)
            if pool.least > 1:
                pools = _with(pools, {largest: replace(pool, num_actors=pool.least - 1)})
            elif any(_pool(pools, name).num_cpus for name in names):
                # One of each without a CPU of their own: the machine shares them out.
                changed = {name: replace(_pool(pools, name), num_cpus=0) for name in names}
                pools = _with(pools, changed)
            else:
                raise
        else:
            return pools


def _with(pools: Pools, actors: Mapping[str, ActorPool]) -> Pools:
    """The same pools with some of the actor pools replaced."""
    return replace(
        pools,
        compress=actors.get("compress", pools.compress),
        answer=actors.get("answer", pools.answer),
    )


def _pool(pools: Pools, name: str) -> ActorPool:
    """An actor pool by its stage's name."""
    pool = getattr(pools, name)
    assert isinstance(pool, ActorPool)
    return pool
