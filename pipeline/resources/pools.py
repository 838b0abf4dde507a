"""Pools of workers per stage, checked before a job starts; devices of their workers; CPUs.

Ray waits forever without a message for a pool that does not fit the cluster, so this is checked
first. Workers that reserve no GPU still see all GPUs of their node, and all of them would use the
first one, which Ray considers free. So a pool without `num_gpus` computes on the CPU, unless the
recipe sets `model.device: cuda`.
"""

from __future__ import annotations

import math
import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, ClassVar

from tango_core.errors import InputError

if TYPE_CHECKING:
    from pipeline.clips import Pools
    from pipeline.settings import Settings
    from tango_core.models.base import ModelSpec


CGROUPS = Path("/sys/fs/cgroup")


class PoolError(InputError):
    """A pool cannot be scheduled on this cluster."""


@dataclass(frozen=True)
class TaskPool:
    """CPU tasks, for a stage that is a function.

    Attributes:
        num_cpus: CPUs one task reserves; a cluster runs as many tasks as fit beside the actors.
        resources: Amounts of resources with names of your own that one task reserves, such as
            `{decode_node: 1}`: it runs on nodes that were started with them.
    """

    num_cpus: float = 1
    resources: dict[str, float] = field(default_factory=dict)
    least: ClassVar[int] = 1
    num_gpus: ClassVar[float] = 0
    placement_order: ClassVar[tuple[float, ...]] = (1,)

    def __post_init__(self) -> None:
        """Refuse tasks without CPUs, whose number would not be limited."""
        _raise_if_wrong(self.resources)
        if not 0 < self.num_cpus < math.inf:
            raise InputError(f"pools.decode.num_cpus must be above 0, got {self.num_cpus}")


@dataclass(frozen=True)
class ActorPool:
    """Actors, for a stage that is a class: each holds a model.

    Attributes:
        num_actors: Number of actors, each with a copy of the model; or (least, most): the pool
            starts with the least and grows while clips wait and the cluster has free resources.
        num_gpus: GPUs one actor reserves; a fraction lets actors share one.
        num_cpus: CPUs one actor reserves, and torch threads it uses (at least one).
        resources: Amounts of resources with names of your own that one actor reserves; see
            `TaskPool`.
    """

    num_actors: int | tuple[int, int] = 1
    num_gpus: float = 0
    num_cpus: float = 0
    resources: dict[str, float] = field(default_factory=dict)

    def __post_init__(self) -> None:
        """Refuse invalid amounts."""
        _raise_if_wrong(self.resources)
        if self.least < 1:
            raise InputError(f"pools.*.num_actors must be 1 or larger, got {self.num_actors}")
        if self.most < self.least:
            given = [self.least, self.most]
            raise InputError(f"pools.*.num_actors [least, most] must not decrease, got {given}")
        if not (0 <= self.num_gpus < math.inf and 0 <= self.num_cpus < math.inf):
            raise InputError(f"pools.*.num_gpus and num_cpus must be 0 or larger, got {self}")
        if self.num_gpus > 1 and self.num_gpus != int(self.num_gpus):
            raise InputError(f"pools.*.num_gpus above 1 must be whole, got {self.num_gpus:g}")

    @property
    def least(self) -> int:
        """Number of actors that the pool starts with."""
        return self.num_actors[0] if isinstance(self.num_actors, tuple) else self.num_actors

    @property
    def most(self) -> int:
        """Number of actors that the pool may grow to."""
        return self.num_actors[1] if isinstance(self.num_actors, tuple) else self.num_actors

    @property
    def placement_order(self) -> tuple[float, ...]:
        """Actors are placed before tasks, and those that fit on few nodes first."""
        return (0, -len(self.resources), -self.num_gpus, -self.num_cpus)

    @property
    def num_threads(self) -> int:
        """CPU threads for torch in one actor."""
        return max(1, int(self.num_cpus))


def preflight(pools: Pools, nodes: Sequence[Mapping[str, float]], stages: Sequence[str]) -> None:
    """Refuse pools that can never be scheduled.

    For a pool that may grow, the initial number of actors must fit. Actors are placed one by one,
    the largest first, on the first node with enough resources; then one node must have enough for
    one task of each task stage. This is at least as strict as Ray's scheduling.

    Args:
        pools: Pools of the job.
        nodes: Resources of every live node, e.g. `{"CPU": 8, "GPU": 1}`.
        stages: Names of the stages that the job has.

    Raises:
        PoolError: The message names the pool, the needed and available resources, and the setting.
    """
    wanted = {name: getattr(pools, name) for name in stages}
    own = sorted({kind for pool in wanted.values() for kind in pool.resources})
    free = [{kind: float(node.get(kind, 0)) for kind in ("CPU", "GPU", *own)} for node in nodes]
    cluster = ", ".join(_in_words(node) for node in free[:4])
    cluster += f" and {len(free) - 4} more nodes" if len(free) > 4 else ""
    workers = [(name, pool) for name, pool in wanted.items() for _ in range(pool.least)]
    for name, pool in sorted(workers, key=lambda worker: worker[1].placement_order):
        needs = {"CPU": pool.num_cpus, "GPU": pool.num_gpus, **pool.resources}
        if not _reserve(needs, free):
            settings = [setting for setting in vars(pool) if setting != "resources"]
            lower = ", ".join(f"pools.{name}.{setting}" for setting in settings)
            end = f"; or start a node with --resources for pools.{name}.resources"
            raise PoolError(
                f"the cluster ({cluster}) has no room for {pool.least} {name} worker(s) of "
                f"{_in_words(needs)} beside the other pools; lower {lower}, or those of another "
                f"pool{end if pool.resources else ''}"
            )


def _raise_if_wrong(resources: Mapping[str, float]) -> None:
    """Refuse amounts that Ray would refuse, and names that Ray reserves."""
    for kind, amount in resources.items():
        if kind in ("CPU", "GPU", "memory", "object_store_memory"):
            raise InputError(f"pools.*.resources may not name {kind}; use num_cpus or num_gpus")
        if not 0 < amount < math.inf or (amount > 1 and amount != int(amount)):
            raise InputError(
                f"pools.*.resources.{kind} must be above 0, and above 1 whole, got {amount:g}"
            )


def _in_words(amounts: Mapping[str, float]) -> str:
    """Format resources for messages."""
    named = {"CPU": "CPUs", "GPU": "GPUs"}
    *first, last = [f"{amount:g} {named.get(kind, kind)}" for kind, amount in amounts.items()]
    return f"{', '.join(first)} and {last}" if first else last


def _reserve(needs: Mapping[str, float], free: Sequence[dict[str, float]]) -> bool:
    """Take `needs` from the first node that has them; `False` if none has."""
    for node in free:
        if all(node[kind] >= amount - 1e-9 for kind, amount in needs.items()):
            for kind, amount in needs.items():
                node[kind] -= amount
            return True
    return False


# Stage -> the part of the model that its actors hold.
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
        reserved = "cuda" if pool.num_gpus > 0 else "cpu"
        device = reserved if settings.device == "auto" else settings.device
    if stage == "answer" and pool.num_gpus > 1 and device != "cpu":
        device = ",".join(f"cuda:{index}" for index in range(int(pool.num_gpus)))
    return replace(model, device=device)


def reserves_gpus(pools: Pools) -> bool:
    """Whether the workers of any part of the model reserve GPUs."""
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
        pool: ActorPool = getattr(pools, stage)
        if stage not in HALVES or asked == "cpu" or pool.num_gpus > 0:
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
    """Context manager for loading a part of the model into the GPU memory that a pool reserves.

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


def num_cpus(cgroups: Path = CGROUPS) -> int:
    """CPUs that this process may use.

    The quota of cgroups (version 1 or 2), rounded down, as Ray counts, and the CPUs that `taskset`
    or a batch system binds this process to, which Ray ignores.
    """
    has_affinity = hasattr(os, "sched_getaffinity")
    bound_to = len(os.sched_getaffinity(0)) if has_affinity else os.cpu_count() or 1
    return max(1, int(min(_quota(cgroups) or math.inf, bound_to)))


def _quota(cgroups: Path) -> float | None:
    """Number of CPUs of a container's quota; `None` without a quota."""
    quota = number(cgroups / "cpu/cpu.cfs_quota_us")
    period = number(cgroups / "cpu/cpu.cfs_period_us")
    if quota is None or period is None:
        words = _read(cgroups / "cpu.max").split()
        if len(words) != 2 or not all(word.isdecimal() for word in words):
            return None
        quota, period = float(words[0]), float(words[1])
    return quota / period if quota > 0 and period > 0 else None


def number(file: Path) -> float | None:
    """The number in a file; `None` if it holds none."""
    try:
        return float(_read(file))
    except ValueError:
        return None


def _read(file: Path) -> str:
    """Content of a small file; "" if it cannot be read."""
    try:
        return file.read_text()
    except OSError:
        return ""
