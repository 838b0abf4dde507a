"""Run stages on Arrow blocks in Ray's workers.

Every worker imports this module, so it must not import torch, which decode workers do not need.
"""

from __future__ import annotations

import socket
from collections.abc import Callable
from functools import partial
from typing import Any, cast

import pyarrow as pa
import ray

from pipeline.clips import Stage
from pipeline.errors import DeviceError
from pipeline.executors.attempts import AttemptLedger, BoundedAttempts
from pipeline.executors.ray_reports import WorkerReport
from pipeline.metrics import Metered, stream_of
from pipeline.resources.devices import room_for
from pipeline.resources.pools import ActorPool
from pipeline.rows import packed, unpacked
from pipeline.runtime import stopping

LOST_GPU = 70
"""Exit code of a worker that can no longer use its GPU."""


def task(stage: Stage, ledger: Any = None) -> Callable[..., pa.Table]:
    """Convert a stage that is a function to a function on Arrow blocks.

    Args:
        stage: The stage.
        ledger: Handle of the actor that counts clips; `None` for no reports.
    """
    function = stage.load()

    def on_block(block: pa.Table, **arguments: Any) -> pa.Table:
        report = WorkerReport(ledger)
        run = Metered(stream_of(partial(function, **arguments)), stage.name, report)
        done = packed(run(unpacked(block)))
        report.flush()
        return done

    on_block.__name__ = function.__name__  # shown in Ray's dashboard
    return on_block


class StageActor:
    """Runs a stage that is a class on Arrow blocks, with a limit on the attempts at one clip.

    Args:
        stage: The stage.
        arguments: Arguments of its class.
        ledger: Handle of the actor that counts attempts and clips.
        pool: Pool of the actor.

    Raises:
        PoolError: If its half of the model does not fit into the GPU's memory.
    """

    def __init__(
        self, stage: Stage, arguments: dict[str, Any], ledger: Any, pool: ActorPool
    ) -> None:
        with room_for(stage.name, pool, arguments.get("model")):
            run = stream_of(stage.load()(**arguments))
        attempts = cast("AttemptLedger", _RemoteLedger(ledger))
        bounded = BoundedAttempts(run, stage.failure, attempts, _where())
        self._report = WorkerReport(ledger)
        self._run = Metered(bounded, stage.name, self._report)

    def __call__(self, block: pa.Table) -> pa.Table:
        """Run the stage on the clips of a block.

        A process whose GPU is unusable exits: Ray starts another one and repeats the block there,
        and the ledger limits how often. An exception would end the whole job instead.
        """
        try:
            done = packed(self._run(unpacked(block)))
        except DeviceError:
            stopping.leave(LOST_GPU)  # a normal exit would wait for the GPU
        self._report.flush()
        return done


def _where() -> str:
    """This worker's host and GPUs."""
    gpus = ", ".join(map(str, ray.get_gpu_ids()))
    return f"on {socket.gethostname()}" + (f", GPU {gpus}" if gpus else "")


class _RemoteLedger:
    """Calls an `AttemptLedger` in a Ray actor.

    It waits for every call, so that a crash on the next clip is not counted for this one as well.
    """

    def __init__(self, actor: Any) -> None:
        self._actor = actor

    def __getattr__(self, name: str) -> Callable[..., Any]:
        return lambda *arguments: ray.get(getattr(self._actor, name).remote(*arguments))
