"""Processes that take turns under one time, one step after the other, the same way every time.

Every process of the simulated world is a greenlet, and exactly one of them runs. A step is what a
process asks of a store or of the time; faults strike between two steps. A process that is killed
gets `Killed` at its next step and at every one after that: what its `finally` blocks try has no
effect, and nothing is left of it but what is in the stores.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import Any

from greenlet import getcurrent, greenlet

from pipeline.runtime.clock import Clock, Ticker
from tests.chaos.simulator.schedules import Fault, Schedule

START = datetime(2030, 1, 2, 3, 4, 5, tzinfo=UTC)
STEP_S = 0.02
MOST_STEPS = 6_000


class Killed(BaseException):
    """This process was killed."""


class StuckError(AssertionError):
    """The processes go on without end."""


@dataclass(eq=False)
class Process:
    """One process of the world.

    Attributes:
        name: Name for messages.
        machine: Number of its machine.
        program: What it runs; its result becomes `value`.
        pid: Process id.
        wake: When it can go on.
        dead: Whether it was killed.
        ended: Whether its program has returned or raised.
        value: Result of the program.
        error: What the program raised, `Killed` included.
        signalled: Whether it received SIGTERM.
        repeated: Functions that it calls at intervals.
        in_lease: Whether its last step was about a lease.
        is_aside: Whether it runs a repeated function, which stands for another thread.
    """

    name: str
    machine: int
    program: Callable[[Process], Any]
    world: World
    pid: int
    wake: float = 0.0
    dead: bool = False
    ended: bool = False
    value: Any = None
    error: BaseException | None = None
    signalled: bool = False
    repeated: list[Repeated] = field(default_factory=list)
    in_lease: bool = False
    is_aside: bool = False

    def __post_init__(self) -> None:
        self.turn = greenlet(self._run, self.world.main)

    @property
    def is_driver(self) -> bool:
        """Whether it drives a run."""
        return self.name.startswith(("driver", "continue", "steal"))

    def step(self, what: str) -> None:
        """Ask for one thing; the caller does it when this returns.

        Raises:
            Killed: If the process is killed before it.
        """
        self.raise_if_dead()
        world = self.world
        world.steps += 1
        if world.steps > MOST_STEPS:
            for process in world.processes:
                process.dead = True
        self.in_lease = "/.lease" in what
        for fault in world.faults.get(world.steps, ()):
            world.strike(fault, self, what)
        self.raise_if_dead()
        world.time += STEP_S
        if not self.in_lease:  # a renewal would wait for the one in progress
            self.call_repeated()

    def wait(self, seconds: float, *, frozen: bool = False) -> None:
        """Let time pass while other processes work; a frozen process calls nothing meanwhile."""
        end = self.world.time + seconds
        while True:
            due = [] if self.is_aside or frozen else [one.due for one in self.repeated]
            self.wake = min([end, *due])
            self.give_turn()
            if not frozen:
                self.call_repeated()
            if self.world.time >= end:
                return

    def give_turn(self) -> None:
        """Let the world decide which process goes on."""
        self.raise_if_dead()
        self.world.main.switch()
        self.raise_if_dead()

    def raise_if_dead(self) -> None:
        """Raise `Killed` if it was killed."""
        if self.dead:
            raise Killed(self.name)

    def call_repeated(self) -> None:
        """Call what is due, in place of another thread of the process."""
        if self.is_aside:
            return
        self.is_aside = True
        try:
            for one in list(self.repeated):
                if one.due <= self.world.time:
                    one.due = self.world.time + one.every_s
                    one.call()
        finally:
            self.is_aside = False

    def ready_at(self) -> float:
        """When it can go on; a dead process ends at once."""
        return -1.0 if self.dead else self.wake

    def _run(self) -> None:
        try:
            self.raise_if_dead()
            self.value = self.program(self)
        except BaseException as error:
            self.error = error
        self.ended = True


class Repeated(Ticker):
    """A function that a process calls at intervals; see `pipeline.runtime.clock.Ticker`."""

    def __init__(self, process: Process, call: Callable[[], object], every_s: float) -> None:
        self.process, self.call, self.every_s, self.due = process, call, every_s, float("inf")

    def start(self) -> None:
        """Start calling."""
        self.due = self.process.world.time + self.every_s
        self.process.repeated.append(self)

    def stop(self, *, wait: bool = True) -> None:
        """Stop calling."""
        if self in self.process.repeated:
            self.process.repeated.remove(self)


@dataclass(frozen=True)
class ClockOf(Clock):
    """The clock of a process."""

    process: Process

    def monotonic(self) -> float:
        """Seconds since the start of the world."""
        return self.process.world.time

    def now(self) -> datetime:
        """The date as the process's machine believes it to be."""
        world = self.process.world
        return START + timedelta(seconds=world.time + world.skew.get(self.process.machine, 0.0))

    def sleep(self, seconds: float) -> None:
        """Wait."""
        self.process.step(f"sleep {seconds:g}")
        self.process.wait(seconds)

    def repeat(self, call: Callable[[], object], every_s: float, name: str) -> Repeated:
        """See `Clock`."""
        return Repeated(self.process, call, every_s)


@dataclass(eq=False)
class World:
    """All processes, the time, and what goes wrong.

    Attributes:
        schedule: What goes wrong.
        strike: Lets a fault happen to the process at work.
        time: Seconds since the start.
        steps: Steps of all processes.
        skew: Machine -> seconds by which its date is wrong.
        struck: Faults that happened.
        faults: Step -> faults that strike before it.
    """

    schedule: Schedule
    strike: Callable[[Fault, Process, str], None]
    time: float = 0.0
    steps: int = 0
    skew: dict[int, float] = field(default_factory=dict)
    struck: list[Fault] = field(default_factory=list)
    processes: list[Process] = field(default_factory=list)
    running: Process | None = None
    preferred: Process | None = None
    faults: dict[int, list[Fault]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.main = getcurrent()
        for fault in self.schedule.faults:
            self.faults.setdefault(fault.at, []).append(fault)

    def spawn(self, name: str, machine: int, program: Callable[[Process], Any]) -> Process:
        """Start one more process."""
        process = Process(name, machine, program, self, 1000 + len(self.processes), self.time)
        self.processes.append(process)
        return process

    def run(self) -> None:
        """Run until every process has ended.

        Raises:
            StuckError: If that does not happen.
        """
        while living := [one for one in self.processes if not one.ended]:
            if self.preferred in living:
                chosen = self.preferred
            else:
                chosen = min(living, key=lambda one: (one.ready_at(), one.pid))
            self.preferred = None
            self.time = max(self.time, chosen.ready_at())
            self.running = chosen
            chosen.turn.switch()
        if self.steps > MOST_STEPS:
            raise StuckError(f"after {MOST_STEPS} steps the job has not ended")

    def switch(self, process: Process, to: int) -> bool:
        """Let another process go on first; whether there is one."""
        others = [one for one in self.processes if not (one is process or one.ended or one.dead)]
        if not others:
            return False
        chosen = others[to % len(others)]
        chosen.wake = min(chosen.wake, self.time)
        process.wake = self.time
        self.preferred = chosen
        process.give_turn()
        return True

    def kill_machine(self, machine: int) -> None:
        """Kill all processes of a machine."""
        for process in self.processes:
            if process.machine == machine:
                process.dead = True
