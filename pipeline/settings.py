"""Settings, choice of the executor, and sizes of the pools; they do not affect results.

A pipeline is as fast as its slowest stage, so with `pools: auto` every additional worker goes to
the stage with the most work per worker.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from types import MappingProxyType
from typing import Any, Literal, cast

from pipeline.clips import Pools
from pipeline.resources.pools import ActorPool, PoolError, preflight
from pipeline.storage.copies import VideoCache

Executor = Literal["ray", "local"]
Wanted = Literal["auto", "ray", "local"]

LOOP_UP_TO = 150
"""Maximum number of clips for which `local` is faster than starting Ray."""

Node = Mapping[str, float]

# Relative work of the stages where nothing has been measured: the answers of a sweep take longest.
UNMEASURED: Mapping[str, float] = MappingProxyType({"decode": 1.0, "compress": 1.0, "answer": 2.0})
_ACTORS = ("compress", "answer")
# Of the memory that Ray gives to workers, what models may take.
_MEMORY_SHARE = 0.8


@dataclass(frozen=True)
class Settings:
    """Executor, pools and limits.

    Attributes:
        executor: `"ray"`, or `"local"` for the same stages in a plain loop.
        address: Ray cluster to use; `None` starts one on this machine.
        pools: Workers of each stage.
        device: Requested device, `auto | cpu | cuda`; on Ray, `auto` is the device that a pool
            reserves.
        start_timeout_s: Seconds to wait for Ray to start or to accept this driver.
        lost_timeout_s: Seconds to wait for a replacement if a lost node leaves too few resources
            for the pools.
        decode_timeout_s: Timeout of decoding one clip in seconds.
        decode_memory_gib: Memory limit of one decoder in GiB.
        keep_damaged: Answer clips whose stream is damaged, with the status `decode_damaged`.
        videos: Each node's cache of downloaded videos.
        share_prefix: Prefill a clip once for all its questions; `False` when latency is measured.
        batch_tokens: Maximum number of prompt and reply tokens in one batch of an answer actor;
            `None` lets the model choose, 1 answers one clip after the other.
        profile: Measure latencies: the first successful clip is processed once before as a
            warm-up, and every method is measured separately. Needs the executor `"local"` and a
            plan in which every clip is missing from every cache.
    """

    executor: Executor = "ray"
    address: str | None = None
    pools: Pools = field(default_factory=Pools)
    device: str = "auto"
    start_timeout_s: float = 120
    lost_timeout_s: float = 300
    decode_timeout_s: float = 120
    decode_memory_gib: float = 4
    keep_damaged: bool = False
    videos: VideoCache = field(default_factory=lambda: VideoCache("~/.cache/tango-video", 50))
    share_prefix: bool = True
    batch_tokens: int | None = None
    profile: bool = False


@dataclass(frozen=True)
class Choice:
    """An executor and the reason for its choice.

    Attributes:
        executor: `"ray"` or `"local"`.
        reason: For one line of the log.
    """

    executor: Executor
    reason: str


def choose(
    wanted: Wanted,
    *,
    num_clips: int | None,
    address: str | None = None,
    pools: Pools | None = None,
    profile: bool = False,
    unused_gpu: Callable[[], bool] = lambda: False,
) -> Choice | None:
    """Choose the executor of a job.

    Args:
        wanted: `executor` of the recipe.
        num_clips: Number of clips of the job, or an upper bound; `None` if unknown.
        address: Address of a cluster, if one was given.
        pools: Workers of each stage; `None` for the defaults.
        profile: Whether latencies are measured.
        unused_gpu: Function that returns whether this process sees a GPU that no pool reserves, so
            that only the local executor would use it.

    Returns:
        The choice, or `None` if it depends on the unknown number of clips.
    """
    if profile:
        return Choice("local", "mode profile measures in one process")
    if wanted != "auto":
        return Choice(wanted, "as the recipe says")
    if address is not None:
        return Choice("ray", f"--address {address}")
    for name, pool in vars(pools or Pools()).items():
        if getattr(pool, "most", 1) > 1:
            return Choice("ray", f"pools.{name} has several actors")
    if num_clips is None:
        return None
    if num_clips <= LOOP_UP_TO:
        return Choice("local", f"{num_clips} clips are done before Ray has paid for its start")
    if unused_gpu():
        reason = (
            "it uses the GPU of this machine, which no pool reserves; for Ray set "
            "pools.compress.num_gpus and pools.answer.num_gpus, or pools to auto"
        )
        return Choice("local", reason)
    return Choice("ray", f"{num_clips} clips are more than {LOOP_UP_TO}")


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
