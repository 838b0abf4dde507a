"""Choose the executor for `executor: auto`."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

from pipeline.clips import Pools
from pipeline.settings import Executor

Wanted = Literal["auto", "ray", "local"]

LOOP_UP_TO = 150
"""Maximum number of clips for which `local` is faster than starting Ray."""


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
