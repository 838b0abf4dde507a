"""Pools of workers per stage, validated before a job starts.

Ray waits forever without a message for a pool that does not fit the cluster, so this is checked
first.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, ClassVar

from tango_core.errors import InputError

if TYPE_CHECKING:
    from pipeline.clips import Pools


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
            raise InputError(
                "pools.*.num_actors must be [least, most] with least <= most, "
                f"got [{self.least}, {self.most}]"
            )
        if not (0 <= self.num_gpus < math.inf and 0 <= self.num_cpus < math.inf):
            raise InputError(f"pools.*.num_gpus and num_cpus must be 0 or larger, got {self}")
        if self.num_gpus > 1 and self.num_gpus != int(self.num_gpus):
            raise InputError(
                f"pools.*.num_gpus above 1 must be a whole number, got {self.num_gpus:g}"
            )

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
            settings = ["num_cpus"]
            if isinstance(pool, ActorPool):
                settings = ["num_actors", "num_gpus", *settings]
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
                f"pools.*.resources.{kind} must be above 0, and above 1 a whole number, "
                f"got {amount:g}"
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
