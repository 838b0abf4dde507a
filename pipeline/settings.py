"""Settings of the executor; they do not affect results."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

from pipeline.clips import Pools
from pipeline.storage.copies import VideoCache

Executor = Literal["ray", "local"]


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
