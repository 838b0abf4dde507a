"""Where the stages run: how many workers each gets, checked before anything starts.

Ray waits silently and for ever for a pool that does not fit the cluster, so the arithmetic is done
here first.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field


class PoolError(ValueError):
    """A pool cannot be scheduled on this cluster."""


@dataclass(frozen=True)
class DecodePool:
    """CPU tasks that decode.

    Attributes:
        num_cpus: CPUs one task reserves; a cluster runs as many tasks as fit beside the actors.
    """

    num_cpus: float = 1

    def __post_init__(self) -> None:
        """A task without CPUs would have no upper bound on its copies."""
        if self.num_cpus <= 0:
            raise ValueError(f"pools.decode.num_cpus must be above 0, got {self.num_cpus}")


@dataclass(frozen=True)
class ActorPool:
    """Actors that hold a model.

    Attributes:
        num_actors: Copies of the model.
        num_gpus: GPUs one actor reserves; a fraction lets actors share one.
        num_cpus: CPUs one actor reserves, and torch threads it uses (at least one).
    """

    num_actors: int = 1
    num_gpus: float = 0
    num_cpus: float = 0

    def __post_init__(self) -> None:
        """Refuse pools that nothing could run on."""
        if self.num_actors < 1:
            raise ValueError(f"pools.*.num_actors must be 1 or larger, got {self.num_actors}")
        if self.num_gpus < 0 or self.num_cpus < 0:
            raise ValueError(f"pools.*.num_gpus and num_cpus must not be negative, got {self}")

    @property
    def num_threads(self) -> int:
        """CPU threads for torch in one actor."""
        return max(1, int(self.num_cpus))


@dataclass(frozen=True)
class Pools:
    """All pools of a job; never part of the cache identity.

    Attributes:
        decode: CPU tasks.
        compress: Actors with the vision encoder.
        answer: Actors with the language model.
    """

    decode: DecodePool = field(default_factory=DecodePool)
    compress: ActorPool = field(default_factory=ActorPool)
    answer: ActorPool = field(default_factory=ActorPool)


def preflight(pools: Pools, nodes: Sequence[Mapping[str, float]], stages: Sequence[str]) -> None:
    """Refuse pools that can never be scheduled.

    Args:
        pools: What the job asks for.
        nodes: Resources of every live node, e.g. `{"CPU": 8, "GPU": 1}`.
        stages: Stages the job has: of `"decode"`, `"compress"`, `"answer"`.

    Raises:
        PoolError: Names the pool, what it needs, what there is, and the setting to change.
    """
    total = {kind: sum(node.get(kind, 0) for node in nodes) for kind in ("CPU", "GPU")}
    actors = {
        name: pool
        for name in ("compress", "answer")
        if name in stages
        for pool in [getattr(pools, name)]
    }
    for name, pool in actors.items():
        if not any(
            node.get("CPU", 0) >= pool.num_cpus and node.get("GPU", 0) >= pool.num_gpus
            for node in nodes
        ):
            raise PoolError(
                f"no node of the cluster can hold one {name} actor ({pool.num_cpus:g} CPUs, "
                f"{pool.num_gpus:g} GPUs); the cluster has {total['CPU']:g} CPUs and "
                f"{total['GPU']:g} GPUs on {len(nodes)} node(s): "
                f"lower pools.{name}.num_cpus or pools.{name}.num_gpus"
            )
    gpus = sum(pool.num_actors * pool.num_gpus for pool in actors.values())
    if gpus > total["GPU"]:
        raise PoolError(
            f"the actor pools need {gpus:g} GPUs and the cluster has {total['GPU']:g}; "
            "lower pools.compress.num_actors, pools.answer.num_actors or their num_gpus "
            "(fractions are allowed)"
        )
    decode = pools.decode.num_cpus if "decode" in stages else 0
    cpus = sum(pool.num_actors * pool.num_cpus for pool in actors.values())
    if cpus + decode > total["CPU"]:
        raise PoolError(
            f"the actor pools reserve {cpus:g} CPUs and one decode task {decode:g}, and the "
            f"cluster has {total['CPU']:g}; lower pools.compress.num_cpus, pools.answer.num_cpus, "
            "their num_actors, or pools.decode.num_cpus"
        )
    if decode and not any(node.get("CPU", 0) >= decode for node in nodes):
        raise PoolError(
            f"no node has the {decode:g} CPUs of one decode task; lower pools.decode.num_cpus"
        )
