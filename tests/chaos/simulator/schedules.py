"""Faults as plain values, how each happens, and how a seed becomes a schedule of them.

Every fault names the step at which it strikes: steps count what the processes of the world ask of
stores and of the time. Everything is drawn before anything runs, so that a schedule can be run
again, made smaller and printed.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

if TYPE_CHECKING:
    from tests.chaos.simulator.running import Running
    from tests.chaos.simulator.world import Process

WorldKind = Literal["disk", "shared", "store"]
"""One machine with a disk; two machines with a shared disk; two machines with an object store."""
FAULTS = (
    *("kill", "signal", "power cut", "node loss", "pause", "slow", "switch", "full disk"),
    *("outage", "refused", "lost answer", "listing", "clock jump", "decode", "arrive", "rot"),
)
STEPS = {"disk": 420, "shared": 420, "store": 200}
"""About the steps of a job with four clips and of a second process."""


class Fault(NamedTuple):
    """One fault.

    Attributes:
        at: The step before which it strikes, counted from 1.
        kind: One of `FAULTS`.
        value: Its argument, which `strike` explains.
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


def strike(running: Running, process: Process, kind: str, value: Any) -> bool:
    """Let a fault happen to the process at work; returns whether it did."""
    world = running.world
    match kind:
        case "kill":  # SIGKILL, before the next step or the next that `value` names
            process.dead = True
        case "signal":  # SIGTERM to a driver, which reacts after its next clip
            process.signalled = True
            return process.is_driver
        case "power cut":  # lost changes of names; share of bytes not synchronised that survives
            if running.schedule.world != "disk":
                return False
            world.kill_machine(process.machine)
            running.disk.cut_power(*value)
        case "node loss":  # ends all processes of the machine; its files are elsewhere
            world.kill_machine(process.machine)
        case "pause":  # the process stands still for some seconds, its renewals too
            process.wait(value, frozen=True)
        case "slow":  # the step takes some seconds; the process's other threads go on
            process.wait(value, frozen=process.is_aside or process.in_lease)
        case "switch":  # another process goes on first
            return world.switch(process, value)
        case "full disk":  # nothing can be written for some seconds
            running.disk.full_until = world.time + value
            return not running.is_store
        case "outage":  # the store answers nothing but 503 for some seconds
            running.bucket.down_until = world.time + value
            return running.is_store
        case "refused":  # so many requests are answered 503: they have no effect
            running.bucket.refused += value
            return running.is_store
        case "lost answer":  # so many writes are done, and their answers are lost
            running.bucket.unanswered += value
            return running.is_store
        case "listing":  # the next one of a token cache is seconds old, or lacks every n-th name
            running.listing_faults.append(value)
        case "clock jump":  # the date of the machine jumps; its monotonic clock does not
            world.skew[process.machine] = world.skew.get(process.machine, 0.0) + value
        case "decode":  # the next decoding crashes, or hangs until its time is over
            running.decode_faults.append(value)
        case "arrive":  # one more process starts: its role in `running.ROLES`, and its machine
            role, machine = value
            running.spawn(role, 0 if running.schedule.world == "disk" else machine)
        case "rot":
            return _damage(running, *value)
    return True


def _damage(running: Running, how: str, of: str, which: int) -> bool:
    """Damage a file that was written whole.

    Args:
        running: The world.
        how: `flip` a byte, `cut` the end off, `swap` with another file of its directory, `empty` it
            or `lose` it.
        of: `entry` (a token set), `shard` or `part` (of the answers).
        which: Which of them, modulo their number.
    """
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


def schedule_of(
    seed: int,
    kinds: Sequence[str] = (),
    worlds: Sequence[WorldKind] = ("disk", "disk", "shared", "store", "store"),
) -> Schedule:
    """The schedule of a seed.

    Args:
        seed: Seed of everything that is drawn.
        kinds: Names in `KINDS` or `NARROW` of what goes wrong; some of `KINDS` if none is named.
        worlds: Worlds to choose from.
    """
    draw = random.Random(seed)
    world = draw.choice(worlds)
    last = int(STEPS[world] * draw.choice((1, 1, 1.5, 2)))
    kinds = kinds or draw.sample(sorted(KINDS), k=draw.randint(1, 4))
    found: list[Fault] = []
    for _ in range(draw.choice((1, 2, 2, 3, 3, 4, 5, 7))):
        found += {**KINDS, **NARROW}[draw.choice(kinds)](draw, world, draw.randint(1, last))
    return Schedule(
        world=world,
        clips=draw.choice((2, 3, 3, 4, 4, 5)),
        moves=world != "disk" and draw.random() < 0.5,
        compacted=draw.random() < 0.15 or "damaged shard" in kinds,
        order=draw.randint(0, 9),
        faults=tuple(sorted(found, key=lambda fault: fault.at)),
    )


def _death(draw: random.Random, world: str, at: int) -> list[Fault]:
    kind = draw.random()
    if kind < 0.6:
        return [Fault(at, "kill", draw.choice(("", "", "put", "remove")))]
    if kind < 0.7:
        return [Fault(at, "signal")]
    if world == "disk":
        lost, torn = draw.choice((0, 0, 0, 1, 2, 1000)), draw.choice((0, 0.5, 1))
        return [Fault(at, "power cut", (lost, torn))]
    return [Fault(at, "node loss")]


def _arrivals(*roles: str) -> Drawn:
    """Another process in one of these roles, and moments at which the processes take turns."""

    def drawn(draw: random.Random, world: str, at: int) -> list[Fault]:
        found = [Fault(at, "arrive", (draw.choice(roles), draw.choice((0, 1))))]
        if "compact" in roles and draw.random() < 0.3:
            found.append(Fault(at + draw.randint(1, 40), "arrive", ("compact", 0)))
        return [*found, *_turns(draw, at)]

    return drawn


def _turns(draw: random.Random, at: int) -> list[Fault]:
    return [
        Fault(at + draw.randint(1, 120), "switch", draw.randint(0, 2))
        for _ in range(draw.randint(1, 6))
    ]


def _one(kind: str, *values: object) -> Drawn:
    """One fault with one of these values."""
    return lambda draw, world, at: [Fault(at, kind, draw.choice(values))]


def _away(draw: random.Random, world: str, at: int) -> list[Fault]:
    """A store that takes no writes."""
    seconds = draw.choice((1.0, 8.0, 30.0, 200.0))
    if world != "store":
        return [Fault(at, "full disk", seconds)]
    faults = (
        Fault(at, "outage", seconds),
        Fault(at, "refused", draw.choice((1, 2, 5, 7, 20))),
        Fault(at, "lost answer", draw.choice((1, 1, 2, 3))),
    )
    return [draw.choice(faults)]


def _rot(draw: random.Random, world: str, at: int) -> list[Fault]:
    how = draw.choice(("flip", "flip", "cut", "swap", "swap", "empty", "lose"))
    of = draw.choice(("entry", "entry", "shard", "part", "part"))
    return [Fault(at, "rot", (how, of, draw.randint(0, 30)))]


def _swapped(draw: random.Random, world: str, at: int) -> list[Fault]:
    """Token sets change places between two attempts."""
    at = draw.randint(60, 260)
    return [Fault(at, "kill"), Fault(at + 1, "rot", ("swap", "entry", draw.randint(0, 30)))]


def _damaged_shard(draw: random.Random, world: str, at: int) -> list[Fault]:
    """A shard is damaged before the job reads it."""
    how = draw.choice(("flip", "flip", "swap", "cut"))
    return [Fault(draw.randint(5, 40), "rot", (how, "shard", draw.randint(0, 30)))]


def _killed_keeper(draw: random.Random, world: str, at: int) -> list[Fault]:
    """A process that compacts the caches is killed meanwhile."""
    at = draw.randint(60, 260)
    turns = [Fault(at + after, "switch", draw.randint(0, 2)) for after in (1, 3)]
    return [Fault(at, "arrive", ("compact", 0)), *turns, Fault(at + draw.randint(4, 60), "kill")]


def _late_date(draw: random.Random, world: str, at: int) -> list[Fault]:
    """The date of a driver's machine goes back, then another machine looks at its lease."""
    at = draw.randint(5, 60)
    arrival = Fault(at + draw.randint(1, 40), "arrive", ("continue", 1))
    return [
        Fault(at, "clock jump", draw.choice((-3600.0, -90.0))),
        arrival,
        *_turns(draw, arrival.at),
    ]


Drawn = Callable[[random.Random, str, int], list[Fault]]
KINDS: dict[str, Drawn] = {
    "death": _death,
    "second driver": _arrivals("steal", "steal", "continue"),
    "keeper": _arrivals("compact", "compact", "compact", "verify", "gc"),
    "stop": _one("pause", 5.0, 30.0, 65.0, 100.0, 400.0),
    "slow": _one("slow", 3.0, 30.0, 100.0),
    "away": _away,
    "listing": _one("listing", (5.0, 0), (60.0, 0), (600.0, 0), (0.0, 2), (0.0, 3)),
    "jump": _one("clock jump", -3600.0, -90.0, -20.0, 20.0, 90.0, 3600.0),
    "rot": _rot,
    "decode": _one("decode", "crash", "hang"),
}
NARROW: dict[str, Drawn] = {
    "late date": _late_date,
    "swapped": _swapped,
    "damaged shard": _damaged_shard,
    "killed keeper": _killed_keeper,
}
"""Chains of `KINDS` that are rarely drawn by chance."""
