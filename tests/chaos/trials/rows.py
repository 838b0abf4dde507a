"""What goes wrong in the trials: one function per row of the table."""

from __future__ import annotations

import os
import random
import signal
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tests.chaos.trials.driver import Driver
from tests.chaos.trials.places import Door, below, grow

CLIPS = 8
CELLS = 2


@dataclass
class Trial:
    """One trial while it runs.

    Attributes:
        dice: Of its seed.
        driver: The attempt that is disturbed.
        output: Its runs and caches.
        keeper: The cluster (`cluster_keeper.Keeper`), on Ray.
        door: Of the store, if it has one.
        server: The store's proxy, which can be slow.
        tracking: Process group of the tracking server, if it has one.
        disk: The small disk.
        healed: Threads that make good again what was done.
    """

    dice: random.Random
    driver: Driver
    output: Path
    keeper: Any = None
    door: Door | None = None
    server: Any = None
    tracking: int = 0
    disk: Path | None = None
    healed: list[threading.Thread] = field(default_factory=list)

    def later(self, seconds: float, what: Callable[[], object]) -> None:
        """Do something after a while, whatever the driver does."""

        def wait() -> None:
            time.sleep(seconds)
            what()

        self.healed.append(threading.Thread(target=wait))
        self.healed[-1].start()


Strike = Callable[[Trial], bool]
"""Lets a fault happen; `False` if there was nothing to strike."""


def _actor(stage: str) -> Strike:
    def strike(trial: Trial) -> bool:
        pids = below(trial.keeper.pid, f"MapBatches({stage})")
        for pid in pids[:1]:
            os.kill(pid, signal.SIGKILL)
        return bool(pids)

    return strike


def _decode_child(trial: Trial) -> bool:
    above = trial.keeper.pid if trial.keeper else trial.driver.pid
    pids = below(above, "pipeline.runtime.child_main")
    for pid in pids[:1]:
        os.kill(pid, signal.SIGKILL)
    return bool(pids)


def _raylet(trial: Trial) -> bool:
    """The agent of a node, with which its workers end; another node comes in its place."""
    name = trial.dice.choice(("encode", "answer"))
    os.kill(trial.keeper.raylet(name), signal.SIGKILL)
    trial.later(trial.dice.uniform(0, 5), lambda: trial.keeper.add(name))
    return True


def _signal(signum: int) -> Strike:
    def strike(trial: Trial) -> bool:
        trial.driver.signal(signum)
        return True

    return strike


def _room_again(trial: Trial) -> bool:
    """The disk is small from the start; in some trials it has room again in time."""
    assert trial.disk is not None
    if trial.dice.random() < 0.5:
        disk = trial.disk
        trial.later(trial.dice.uniform(0, 45), lambda: grow(disk))
    return True


def _store_killed(trial: Trial) -> bool:
    assert trial.door is not None
    trial.door.kill()
    trial.later(trial.dice.uniform(0, 20), trial.door.open)
    return True


def _store_slow(trial: Trial) -> bool:
    """Some of the requests take seconds, for the rest of the job."""
    share = trial.dice.uniform(0.05, 0.4)
    trial.server.slow_s = trial.dice.uniform(0.5, 4)
    dice = random.Random(trial.dice.random())
    trial.server.rule = lambda request: "slow" if dice.random() < share else None
    return True


def _tracking_hangs(trial: Trial) -> bool:
    """The server takes connections and does not answer (SIGSTOP), in some trials for ever."""
    group = trial.tracking
    os.killpg(group, signal.SIGSTOP)
    if trial.dice.random() < 0.5:
        trial.later(trial.dice.uniform(1, 60), lambda: os.killpg(group, signal.SIGCONT))
    return True


@dataclass(frozen=True)
class Row:
    """One row of the table.

    Attributes:
        name: Of the row.
        strike: What goes wrong.
        where: `loop`, `ray`, `store`, `tracked` or `disk`.
        ends: Exit codes that are right for the attempt that is disturbed.
    """

    name: str
    strike: Strike
    where: str
    ends: tuple[int, ...]


_LIVES, _KILLED, _STOPPED = (0,), (0, -9), (0, 143)

ROWS = {
    row.name: row
    for row in (
        Row("SIGKILL of the encode actor", _actor("CompressVideo"), "ray", _LIVES),
        Row("SIGKILL of the answer actor", _actor("AnswerQuestions"), "ray", _LIVES),
        Row("SIGKILL of the decode child, Ray", _decode_child, "ray", (0, 1)),
        Row("SIGKILL of the driver, Ray", _signal(signal.SIGKILL), "ray", _KILLED),
        Row("SIGKILL of a second node's raylet", _raylet, "ray", _LIVES),
        Row("SIGTERM, Ray", _signal(signal.SIGTERM), "ray", _STOPPED),
        Row("SIGKILL of the decode child, loop", _decode_child, "loop", (0, 1)),
        Row("SIGKILL of the driver, loop", _signal(signal.SIGKILL), "loop", _KILLED),
        Row("SIGTERM, loop", _signal(signal.SIGTERM), "loop", _STOPPED),
        Row("full disk", _room_again, "disk", (0, 2)),
        Row("S3 server killed", _store_killed, "store", (0, 2)),
        Row("S3 server slow", _store_slow, "store", _LIVES),
        Row("MLflow server hangs", _tracking_hangs, "tracked", _LIVES),
    )
}
