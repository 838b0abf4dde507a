"""How a job runs, apart from what it computes; nothing here changes a result."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

from pipeline.resources.pools import Pools
from pipeline.storage.videos import VideoCache
from tango_core.errors import InputError

Executor = Literal["ray", "local"]


@dataclass(frozen=True)
class Settings:
    """Executor, pools and limits.

    Attributes:
        executor: `"ray"`, or `"local"` for the same stages in a plain loop.
        address: Ray cluster to use; `None` starts one on this machine.
        pools: Workers of each stage.
        device: `auto | cpu | cuda`: the device that was asked for; on Ray, `auto` is what a pool
            reserves.
        start_timeout_s: Seconds that Ray may take to start, or to let this driver in.
        lost_timeout_s: Seconds that a cluster may lack the room for the pools, after a node was
            lost, before the job ends.
        decode_timeout_s: Seconds after which the decoding of one clip is given up.
        decode_memory_gib: Memory one decoder may use, in GiB.
        keep_damaged: Answer clips whose stream is damaged, under the status `decode_damaged`.
        videos: Where each node keeps the videos that it fetches from stores.
        share_prefix: Prefill a clip once for all its questions; `False` when latency is measured.
        batch_tokens: Tokens of prompts and replies that an answer actor works on at once; `None` is
            the model's own choice, 1 answers one clip after the other.
        profile: Measure latencies: the first clip that succeeds is done once more beforehand to
            warm up, and no time is shared between methods. Needs the executor `"local"` and a plan
            in which every clip is missing from every cache.
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

    def __post_init__(self) -> None:
        """Refuse to measure while other work goes on."""
        if self.profile and (self.executor != "local" or self.share_prefix):
            raise InputError("a profile needs executor 'local' and no shared prefix")
