"""Processes that take turns under one time, one step after the other, the same way every time.

Every process of the simulated world is a thread, and exactly one of them is at work. A step is what
a process asks of a store or of the time; faults strike between two steps. A process that is killed
gets `Killed` at its next step, and at every one after that: what its `finally` blocks try has no
effect, and nothing is left of it but what is in the stores.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import Any

from pipeline.runtime.clock import Clock, Ticker
from tests.chaos.simulator.faults import Fault, Schedule

START = datetime(2030, 1, 2, 3, 4, 5, tzinfo=UTC)
STEP_S = 0.02
MOST_STEPS = 6_000
NEVER = float("inf")
HANGS_S = 240
"""Real seconds; a turn takes milliseconds."""


class Killed(BaseException):
    """This process is no more."""


class StuckError(AssertionError):
    """No process can go on, or they go on without end."""


@dataclass(eq=False)
class Process:
    """One process of the world.

    Attributes:
        name: For people.
        machine: Where it runs.
        program: What it does; its value is the process's.
        pid: Like those of a real one.
        parent: Process that started it, if it ends with that.
        wake: When it can go on.
        until: What it waits for beside the time.
        dead: Whether it was killed.
        ended: Whether its thread is at its end.
        value: Of the program.
        error: What the program raised, `Killed` included.
        signalled: Whether it was asked to end.
        repeated: What is called at intervals.
    """

    name: str
    machine: int
    program: Callable[[Process], Any]
    world: World
    pid: int
    parent: Process | None = None
    wake: float = 0.0
    until: Callable[[], bool] | None = None
    dead: bool = False
    ended: bool = False
    value: Any = None
    error: BaseException | None = None
    signalled: bool = False
    repeated: list[Repeated] = field(default_factory=list)
    _turn: threading.Semaphore = field(default_factory=lambda: threading.Semaphore(0))
    _aside: bool = False
    thread: threading.Thread | None = None
    in_lease: bool = False
    began: float = 0.0
    ended_at: float = 0.0

    @property
    def is_driver(self) -> bool:
        """Whether it drives a run."""
        return self.name.startswith("driver")

    def step(self, what: str, seconds: float = STEP_S) -> None:
        """Ask for one thing; the caller does it when this returns.

        Raises:
            Killed: If the process is killed before it.
        """
        self.raise_if_dead()
        world = self.world
        world.steps += 1
        if world.trace is not None:
            world.trace.append(f"{world.steps:5d} {world.time:8.2f} {self.name:12s} {what}")
        if world.steps > MOST_STEPS:
            world.stuck = f"after {MOST_STEPS} steps the job has not ended"
            for process in world.processes:
                process.dead = True
        self.in_lease = "/.lease" in what
        for fault in world.faults.get(world.steps, ()):
            world.strike(fault, self, what)
        self.raise_if_dead()
        world.time += seconds
        if not self.in_lease:  # a renewal would wait for the one that is under way
            self.call_repeated()

    def wait(self, seconds: float, *, frozen: bool = False) -> None:
        """Let time pass for this process, and others work meanwhile."""
        end = self.world.time + seconds
        while True:
            self.raise_if_dead()
            wake = end if frozen else min(end, self.next_call())
            if self.world.soonest(but=self) < wake:
                self.wake = wake
                self.give_turn()
            else:
                self.world.time = max(self.world.time, wake)
            self.raise_if_dead()
            if not frozen:
                self.call_repeated()
            if self.world.time >= end:
                return

    def wait_for(self, ready: Callable[[], bool]) -> None:
        """Wait until something is as it should be; what is repeated goes on."""
        while True:
            self.raise_if_dead()
            self.call_repeated()
            if ready():
                return
            self.until = ready
            self.give_turn()
            self.until = None

    def give_turn(self) -> None:
        """Let the world decide who goes on."""
        self.world.back.release()
        self._turn.acquire()
        self.raise_if_dead()

    def raise_if_dead(self) -> None:
        """Raise `Killed` if it is."""
        if self.dead:
            raise Killed(self.name)

    def next_call(self) -> float:
        """When something that is repeated is due."""
        if self._aside:
            return NEVER
        return min((one.due for one in self.repeated), default=NEVER)

    def call_repeated(self) -> None:
        """Call what is due, in the place of another thread of the process."""
        if self._aside or not self.repeated:
            return
        self._aside = True
        try:
            for one in list(self.repeated):
                if one.due <= self.world.time:
                    one.due = self.world.time + one.every_s
                    one.call()
        finally:
            self._aside = False

    def ready_at(self) -> float:
        """When it can go on; `NEVER` if others must do something first."""
        if self.dead:
            return -1.0
        if self.until is not None:
            return self.world.time if self.until() else self.next_call()
        return self.wake

    def start(self) -> None:
        """Begin; it works when the world lets it."""
        self.thread = threading.Thread(target=self._run, name=self.name, daemon=True)
        self.thread.start()

    def _run(self) -> None:
        self._turn.acquire()
        try:
            self.raise_if_dead()
            self.value = self.program(self)
        except BaseException as error:
            self.error = error
        self.ended, self.ended_at = True, self.world.time
        self.world.back.release()


class Repeated(Ticker):
    """A function that a process calls at intervals; see `pipeline.runtime.clock.Ticker`."""

    def __init__(self, process: Process, call: Callable[[], object], every_s: float) -> None:
        self.process, self.call, self.every_s, self.due = process, call, every_s, NEVER

    def start(self) -> None:
        """From now on."""
        self.due = self.process.world.time + self.every_s
        self.process.repeated.append(self)

    def stop(self, *, wait: bool = True) -> None:
        """No more."""
        if self in self.process.repeated:
            self.process.repeated.remove(self)


@dataclass(frozen=True)
class ClockOf(Clock):
    """The clock of a process."""

    process: Process

    def __reduce__(self) -> Any:
        """A worker has its own."""
        from tests.chaos.simulator.running import clock_of_this_process

        return clock_of_this_process, ()

    def monotonic(self) -> float:
        """Seconds."""
        return self.process.world.time

    def now(self) -> datetime:
        """The date as the machine believes it to be."""
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
        steps: Of all processes.
        skew: Machine -> seconds by which its date is wrong.
        struck: Faults that happened.
        trace: A line per step; `None` if nobody reads it.
    """

    schedule: Schedule
    strike: Callable[[Fault, Process, str], None]
    trace: list[str] | None = None
    time: float = 0.0
    steps: int = 0
    stuck: str = ""
    skew: dict[int, float] = field(default_factory=dict)
    struck: list[Fault] = field(default_factory=list)
    processes: list[Process] = field(default_factory=list)
    living: list[Process] = field(default_factory=list)
    running: Process | None = None
    preferred: Process | None = None
    back: threading.Semaphore = field(default_factory=lambda: threading.Semaphore(0))
    faults: dict[int, list[Fault]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        for fault in self.schedule.faults:
            self.faults.setdefault(fault.at, []).append(fault)

    def spawn(
        self,
        name: str,
        machine: int,
        program: Callable[[Process], Any],
        parent: Process | None = None,
    ) -> Process:
        """One more process."""
        pid = 1000 + len(self.processes)
        process = Process(name, machine, program, self, pid, parent, self.time, began=self.time)
        self.processes.append(process)
        self.living.append(process)
        process.start()
        return process

    def run(self) -> None:
        """Until every process has ended.

        Raises:
            StuckError: If that does not happen.
        """
        while living := [one for one in self.living if not one.ended]:
            self.living = living
            if self.preferred in living:
                chosen = self.preferred
            else:
                chosen = min(living, key=lambda one: (one.ready_at(), one.pid))
            self.preferred = None
            ready = chosen.ready_at()
            if ready == NEVER:
                self.stuck = self.stuck or "every process waits for another one"
                for process in living:
                    process.dead = True
                continue
            self.time = max(self.time, ready)
            self.running = chosen
            chosen._turn.release()
            if not self.back.acquire(timeout=HANGS_S):
                raise RuntimeError(f"{chosen.name} waits for something outside of the world")
        self.living.clear()
        for process in self.processes:
            if process.thread is not None:
                process.thread.join()
        if self.stuck:
            raise StuckError(self.stuck)

    def soonest(self, but: Process) -> float:
        """When another process can go on."""
        return min(
            (one.ready_at() for one in self.living if one is not but and not one.ended),
            default=NEVER,
        )

    def others(self, but: Process) -> list[Process]:
        """Living processes that could go on now if their work had taken less time."""
        return [
            one
            for one in self.living
            if one is not but and not one.ended and not one.dead and one.ready_at() < NEVER
        ]

    def switch(self, process: Process, to: int) -> bool:
        """Let another process go on first; whether there is one."""
        others = self.others(but=process)
        if not others:
            return False
        chosen = others[to % len(others)]
        chosen.wake = min(chosen.wake, self.time)
        process.wake = self.time
        self.preferred = chosen
        process.give_turn()
        return True

    def kill(self, process: Process) -> None:
        """End a process; what it started notices that by itself."""
        process.dead = True

    def kill_machine(self, machine: int) -> None:
        """End all processes of a machine."""
        for process in self.processes:
            if process.machine == machine:
                process.dead = True
