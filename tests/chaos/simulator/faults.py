"""Faults as plain values, and how each happens; a schedule is a list of them.

Every fault names the step at which it strikes: steps count what the processes of the world ask of
stores and of the time. Nothing is drawn while a schedule runs, so that it can be run again, made
smaller and printed.
"""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import TYPE_CHECKING, Literal

if TYPE_CHECKING:
    from tests.chaos.simulator.running import Running
    from tests.chaos.simulator.world import Process

WorldKind = Literal["disk", "shared", "store"]
"""One machine with a disk; two machines with a shared disk; two machines with an object store."""

Executor = Literal["loop", "cluster"]

Role = Literal["continue", "steal", "compact", "verify", "gc", "report"]
"""What a process does: drive the run (in its turn, or at once), look after caches, read."""


@dataclass(frozen=True)
class Fault:
    """Strikes at a step.

    Attributes:
        at: The step, counted from 1.
    """

    at: int

    def awaits(self, what: str) -> bool:
        """Whether it waits for another step than this one."""
        return False

    def strike(self, running: Running, process: Process) -> bool:
        """Let it happen to the process at work; returns whether it did."""
        raise NotImplementedError


@dataclass(frozen=True)
class Kill(Fault):
    """The process at work is gone before the step (SIGKILL).

    Attributes:
        before: Of the steps from this one on, the first that puts a file in place or removes one.
    """

    before: Literal["", "put", "remove"] = ""

    def awaits(self, what: str) -> bool:
        steps = {"": ("",), "put": ("rename", "PUT"), "remove": ("remove", "DELETE")}[self.before]
        return not what.startswith(steps) or (self.before != "" and what.endswith(".tmp"))

    def strike(self, running: Running, process: Process) -> bool:
        running.world.kill(process)
        return True


@dataclass(frozen=True)
class Signal(Fault):
    """The driver at work is asked to end, and hears it after the next clip (SIGTERM)."""

    def strike(self, running: Running, process: Process) -> bool:
        process.signalled = True
        return process.is_driver


@dataclass(frozen=True)
class PowerCut(Fault):
    """All processes of the machine are gone, and of its disk what was not synchronised.

    Attributes:
        lost: Changes of names that do not survive: the last ones, as they are in order, and none
            that a synchronised file has made last.
        torn: Share of the bytes of a file that was not synchronised that survives, in [0, 1].
    """

    lost: int = 0
    torn: float = 0.5

    def strike(self, running: Running, process: Process) -> bool:
        if running.schedule.world != "disk":
            return False
        running.world.kill_machine(process.machine)
        running.disk.cut_power(self.lost, self.torn)
        return True


@dataclass(frozen=True)
class NodeLoss(Fault):
    """All processes of the machine are gone; its files are elsewhere."""

    def strike(self, running: Running, process: Process) -> bool:
        running.world.kill_machine(process.machine)
        return True


@dataclass(frozen=True)
class Pause(Fault):
    """The process at work stands still, its renewals, too (SIGSTOP, a suspended machine)."""

    seconds: float = 100.0

    def strike(self, running: Running, process: Process) -> bool:
        process.wait(self.seconds, frozen=True)
        return True


@dataclass(frozen=True)
class Slow(Fault):
    """The step takes long; what the process does beside it goes on."""

    seconds: float = 30.0

    def strike(self, running: Running, process: Process) -> bool:
        process.wait(self.seconds, frozen=process._aside or process.in_lease)
        return True


@dataclass(frozen=True)
class Switch(Fault):
    """Another process goes on first; `to` counts those that could."""

    to: int = 0

    def strike(self, running: Running, process: Process) -> bool:
        return running.world.switch(process, self.to)


@dataclass(frozen=True)
class FullDisk(Fault):
    """From this step on nothing can be written for some seconds."""

    seconds: float = 3.0

    def strike(self, running: Running, process: Process) -> bool:
        running.disk.full_until = running.world.time + self.seconds
        return not running.is_store


@dataclass(frozen=True)
class Outage(Fault):
    """From this step on the store answers nothing but 503 for some seconds."""

    seconds: float = 10.0

    def strike(self, running: Running, process: Process) -> bool:
        running.bucket.down_until = running.world.time + self.seconds
        return running.is_store


@dataclass(frozen=True)
class Refused(Fault):
    """The store answers the next requests with 503: they have no effect."""

    times: int = 1

    def strike(self, running: Running, process: Process) -> bool:
        running.bucket.refused += self.times
        return running.is_store


@dataclass(frozen=True)
class LostAnswer(Fault):
    """The next writes are done, and their answers are lost."""

    times: int = 1

    def strike(self, running: Running, process: Process) -> bool:
        running.bucket.unanswered += self.times
        return running.is_store


@dataclass(frozen=True)
class StaleListing(Fault):
    """The next listing of a token cache shows what was there some seconds ago."""

    seconds: float = 60.0

    def strike(self, running: Running, process: Process) -> bool:
        running.listing_faults.append(self)
        return True


@dataclass(frozen=True)
class PartialListing(Fault):
    """The next listing of a token cache lacks every `every`-th name."""

    every: int = 2

    def strike(self, running: Running, process: Process) -> bool:
        running.listing_faults.append(self)
        return True


@dataclass(frozen=True)
class ClockJump(Fault):
    """The date of the machine at work jumps; what counts its seconds does not."""

    seconds: float = 600.0

    def strike(self, running: Running, process: Process) -> bool:
        skew = running.world.skew
        skew[process.machine] = skew.get(process.machine, 0.0) + self.seconds
        return True


@dataclass(frozen=True)
class Rot(Fault):
    """A file that was written whole is damaged.

    Attributes:
        kind: `flip` a byte, `cut` the end off, `swap` with another file of its directory, `empty`
            it, or `lose` it.
        of: Which kind of file: one token set, a shard, or a part of the answers.
        which: Counts the files of this kind, modulo their number.
    """

    kind: Literal["flip", "cut", "swap", "empty", "lose"] = "flip"
    of: Literal["entry", "shard", "part"] = "entry"
    which: int = 0

    def strike(self, running: Running, process: Process) -> bool:
        state = running.state
        found = [path for path in state.paths() if self._concerns(path)]
        if not found:
            return False
        path = found[self.which % len(found)]
        data = state.read(path) or b""
        if self.kind == "swap":
            folder = path.rpartition("/")[0]
            near = [p for p in found if p.rpartition("/")[0] == folder and p != path] or [
                p for p in found if p != path
            ]
            if not near:
                return False
            other = near[self.which % len(near)]
            state.put(path, state.read(other) or b"")
            state.put(other, data)
            running.rotten[other] = data
        elif self.kind == "lose":
            state.lose(path)
        elif self.kind == "empty":
            state.put(path, b"")
        elif self.kind == "cut":
            state.put(path, data[: len(data) // 2])
        elif not data:  # it has been emptied before
            return False
        else:
            where = (self.which * 97 + len(data) // 3) % max(1, len(data))
            state.put(path, data[:where] + bytes([data[where] ^ 0x41]) + data[where + 1 :])
        if (now := state.read(path)) is not None:
            running.rotten[path] = now
        return True

    def _concerns(self, path: str) -> bool:
        name = path.rpartition("/")[2]
        if name.startswith(".") or not name.endswith(".parquet"):
            return False
        if self.of == "part":
            return "/answers/" in path
        return "/cache/" in path and name.startswith("shard-") == (self.of == "shard")


@dataclass(frozen=True)
class LostLedger(Fault):
    """The ledger of a cluster starts again with nothing counted."""

    def strike(self, running: Running, process: Process) -> bool:
        for ledger in running.ledgers:
            ledger._begun.clear()
        return bool(running.ledgers)


@dataclass(frozen=True)
class Poison(Fault):
    """A clip kills every worker that holds a model, as long as the driver at work lives.

    Attributes:
        clip: Its number.
    """

    clip: int = 0

    def strike(self, running: Running, process: Process) -> bool:
        driver = process if process.is_driver else process.parent
        if driver is None or running.schedule.executor != "cluster":
            return False
        running.poisoned[driver.pid] = f"clip-{self.clip % running.schedule.clips}"
        return True


@dataclass(frozen=True)
class BadDecode(Fault):
    """The next decoding fails: the child crashes, or hangs until its time is over."""

    how: Literal["crash", "hang"] = "crash"

    def strike(self, running: Running, process: Process) -> bool:
        running.decode_faults.append(self)
        return True


@dataclass(frozen=True)
class Arrive(Fault):
    """One more process starts.

    Attributes:
        role: What it does.
        machine: Where.
    """

    role: Role = "steal"
    machine: int = 0

    def strike(self, running: Running, process: Process) -> bool:
        from tests.chaos.simulator.programs import arrive

        arrive(running, self)
        return True


@dataclass(frozen=True)
class Schedule:
    """A world and what goes wrong in it.

    Attributes:
        world: Where files are.
        executor: A loop, or workers as on a cluster.
        clips: Clips of the benchmark; each has two questions.
        moves: Whether attempts after the first start on the other machine.
        compacted: Whether the token caches are filled, and compacted, before the job starts.
        order: Decides in which order a cluster gives out its work.
        faults: What goes wrong.
    """

    world: WorldKind = "disk"
    executor: Executor = "loop"
    clips: int = 4
    moves: bool = False
    compacted: bool = False
    order: int = 0
    faults: tuple[Fault, ...] = ()

    def printed(self) -> str:
        """As Python; what is as always is left out."""
        lines = [
            f"    {one.name}={getattr(self, one.name)!r},\n"
            for one in fields(self)
            if one.name != "faults" and getattr(self, one.name) != one.default
        ]
        faults = "".join(f"        {fault!r},\n" for fault in self.faults)
        return f"Schedule(\n{''.join(lines)}    faults=(\n{faults}    ),\n)"
