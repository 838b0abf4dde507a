"""Faults as plain values, and how each happens; a schedule is a list of them.

Every fault names the step at which it strikes: steps count what the processes of the world ask of
stores and of the time. Nothing is drawn while a schedule runs, so that it can be run again, made
smaller and printed.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

if TYPE_CHECKING:
    from tests.chaos.simulator.running import Running
    from tests.chaos.simulator.world import Process

WorldKind = Literal["disk", "shared", "store"]
"""One machine with a disk; two machines with a shared disk; two machines with an object store."""


class Fault(NamedTuple):
    """One fault.

    Attributes:
        at: The step before which it strikes, counted from 1.
        kind: A name in `FAULTS`.
        value: Argument of the function of `FAULTS`, which says what it means.
    """

    at: int
    kind: str
    value: Any = None

    def awaits(self, what: str) -> bool:
        """Whether it waits for another step than this one: a kill may name the kind of step."""
        steps = {"put": ("rename", "PUT"), "remove": ("remove", "DELETE")}
        if self.kind != "kill" or self.value not in steps:
            return False
        return not what.startswith(steps[self.value]) or what.endswith(".tmp")

    def strike(self, running: Running, process: Process) -> bool:
        """Let it happen to the process at work; returns whether it did."""
        return FAULTS[self.kind](running, process, self.value) is not False


def _kill(running: Running, process: Process, before: str | None) -> None:
    """SIGKILL, before the next step, or the next that puts a file in place or removes one."""
    process.dead = True


def _signal(running: Running, process: Process, _: None) -> bool:
    """SIGTERM to a driver, which reacts after its next clip."""
    process.signalled = True
    return process.is_driver


def _power_cut(running: Running, process: Process, value: tuple[int, float]) -> bool:
    """End all processes of the machine, and forget what was not synchronised.

    `value`: number of changes of names that are lost, the last ones; share of the bytes of a file
    that was not synchronised that survives.
    """
    if running.schedule.world != "disk":
        return False
    running.world.kill_machine(process.machine)
    running.disk.cut_power(*value)
    return True


def _node_loss(running: Running, process: Process, _: None) -> None:
    """End all processes of the machine; its files are elsewhere."""
    running.world.kill_machine(process.machine)


def _pause(running: Running, process: Process, seconds: float) -> None:
    """Freeze the process, its renewals too (SIGSTOP, a suspended machine)."""
    process.wait(seconds, frozen=True)


def _slow(running: Running, process: Process, seconds: float) -> None:
    """The step takes long; the process's other threads go on."""
    process.wait(seconds, frozen=process.is_aside or process.in_lease)


def _switch(running: Running, process: Process, to: int) -> bool:
    """Another process goes on first."""
    return running.world.switch(process, to)


def _full_disk(running: Running, process: Process, seconds: float) -> bool:
    """Nothing can be written for some seconds."""
    running.disk.full_until = running.world.time + seconds
    return not running.is_store


def _outage(running: Running, process: Process, seconds: float) -> bool:
    """The store answers nothing but 503 for some seconds."""
    running.bucket.down_until = running.world.time + seconds
    return running.is_store


def _refused(running: Running, process: Process, times: int) -> bool:
    """The store answers the next requests with 503: they have no effect."""
    running.bucket.refused += times
    return running.is_store


def _lost_answer(running: Running, process: Process, times: int) -> bool:
    """The next writes are done, and their answers are lost."""
    running.bucket.unanswered += times
    return running.is_store


def _listing(running: Running, process: Process, value: tuple[float, int]) -> None:
    """The next listing of a token cache is so many seconds old, or lacks every n-th name."""
    running.listing_faults.append(value)


def _clock_jump(running: Running, process: Process, seconds: float) -> None:
    """The date of the machine jumps; its monotonic clock does not."""
    skew = running.world.skew
    skew[process.machine] = skew.get(process.machine, 0.0) + seconds


def _decode(running: Running, process: Process, how: str) -> None:
    """The next decoding crashes, or hangs until its time is over."""
    running.decode_faults.append(how)


def _arrive(running: Running, process: Process, value: tuple[str, int]) -> None:
    """One more process starts: its role in `programs.ROLES`, and its machine."""
    from tests.chaos.simulator.programs import ROLES

    role, machine = value
    machine = 0 if running.schedule.world == "disk" else machine
    running.spawn(role, machine, ROLES[role])


def _rot(running: Running, process: Process, value: tuple[str, str, int]) -> bool:
    """A file that was written whole is damaged.

    `value`: `flip` a byte, `cut` the end off, `swap` with another file of its directory, `empty` it
    or `lose` it; the kind of file: `entry` (a token set), `shard` or `part` (of the answers); which
    of them, modulo their number.
    """
    how, of, which = value
    state = running.state
    found = [path for path in state.paths() if kind_of(path) == of]
    if not found:
        return False
    path = found[which % len(found)]
    data = state.read(path) or b""
    if how == "swap":
        others = [other for other in found if other != path]
        folder = path.rpartition("/")[0]
        near = [other for other in others if other.rpartition("/")[0] == folder] or others
        if not near:
            return False
        other = near[which % len(near)]
        state.put(path, state.read(other) or b"")
        state.put(other, data)
        running.rotten[other] = data
    elif how == "lose":
        state.lose(path)
    elif how in ("empty", "cut"):
        state.put(path, data[: len(data) // 2] if how == "cut" else b"")
    elif not data:  # it was emptied before
        return False
    else:
        where = (which * 97 + len(data) // 3) % len(data)
        state.put(path, data[:where] + bytes([data[where] ^ 0x41]) + data[where + 1 :])
    if (now := state.read(path)) is not None:
        running.rotten[path] = now
    return True


def kind_of(path: str) -> str:
    """Kind of a visible Parquet file: `entry`, `shard` or `part`; "" for other files."""
    name = path.rpartition("/")[2]
    if name.startswith(".") or not name.endswith(".parquet"):
        return ""
    if "/answers/" in path:
        return "part"
    cached = "shard" if name.startswith("shard-") else "entry"
    return cached if "/cache/" in path else ""


FAULTS: dict[str, Callable[[Running, Process, Any], bool | None]] = {
    "kill": _kill,
    "signal": _signal,
    "power cut": _power_cut,
    "node loss": _node_loss,
    "pause": _pause,
    "slow": _slow,
    "switch": _switch,
    "full disk": _full_disk,
    "outage": _outage,
    "refused": _refused,
    "lost answer": _lost_answer,
    "listing": _listing,
    "clock jump": _clock_jump,
    "decode": _decode,
    "arrive": _arrive,
    "rot": _rot,
}


@dataclass(frozen=True)
class Schedule:
    """A world and what goes wrong in it; its `repr` is Python that makes it again.

    Attributes:
        world: Where files are.
        clips: Number of clips of the benchmark; each has two questions.
        moves: Whether attempts after the first start on the other machine.
        compacted: Whether the token caches are filled, and compacted, before the job starts.
        order: Seed of random names and of the order of a job's clips; 0 for theirs.
        faults: What goes wrong.
    """

    world: WorldKind = "disk"
    clips: int = 4
    moves: bool = False
    compacted: bool = False
    order: int = 0
    faults: tuple[Fault, ...] = ()
