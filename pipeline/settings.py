"""Settings and choice of the executor; they do not affect results."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Literal

from pipeline.clips import Pools
from pipeline.storage.copies import VideoCache

Executor = Literal["ray", "local"]
Wanted = Literal["auto", "ray", "local"]

LOOP_UP_TO = 150
"""Maximum number of clips for which `local` is faster than starting Ray."""


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
