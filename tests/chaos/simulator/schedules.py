"""From a seed to a schedule: everything is drawn here, before anything runs."""

from __future__ import annotations

import random
from collections.abc import Sequence

from tests.chaos.simulator import faults as f

STEPS = {"disk": 420, "shared": 420, "store": 200}
"""About the steps of a job with four clips, and of what looks on."""


def schedule_of(
    seed: int,
    kinds: Sequence[str] = (),
    worlds: Sequence[f.WorldKind] = ("disk", "disk", "shared", "store", "store"),
) -> f.Schedule:
    """The schedule of a seed.

    Args:
        seed: Of everything that is drawn.
        kinds: Names in `KINDS` or `NARROW` of what goes wrong; some of `KINDS` if none is named.
        worlds: Where.
    """
    draw = random.Random(seed)
    world = draw.choice(worlds)
    executor = draw.choices(("loop", "cluster"), (2, 1))[0]
    last = int(STEPS[world] * draw.choice((1, 1, 1.5, 2)))
    kinds = kinds or draw.sample(sorted(KINDS), k=draw.randint(1, 4))
    found: list[f.Fault] = []
    for _ in range(draw.choice((1, 2, 2, 3, 3, 4, 5, 7))):
        fault = {**KINDS, **NARROW}[draw.choice(kinds)](draw, world, draw.randint(1, last))
        found += fault if isinstance(fault, list) else [fault]
    return f.Schedule(
        world=world,
        executor=executor,
        clips=draw.choice((2, 3, 3, 4, 4, 5)),
        moves=world != "disk" and draw.random() < 0.5,
        compacted=draw.random() < 0.15 or "damaged shard" in kinds,
        order=draw.randint(0, 9),
        faults=tuple(sorted(found, key=lambda fault: fault.at)),
    )


def _death(draw: random.Random, world: str, at: int) -> f.Fault:
    """Something ends."""
    kind = draw.random()
    if kind < 0.6:
        return f.Kill(at, before=draw.choice(("", "", "put", "remove")))
    if kind < 0.7:
        return f.Signal(at)
    if world == "disk":
        return f.PowerCut(
            at, lost=draw.choice((0, 0, 0, 1, 2, 1000)), torn=draw.choice((0, 0.5, 1))
        )
    return f.NodeLoss(at)


def _second_driver(draw: random.Random, world: str, at: int) -> list[f.Fault]:
    """Two drivers, and moments at which they take turns."""
    role = draw.choice(("steal", "steal", "continue"))
    found: list[f.Fault] = [f.Arrive(at, role, machine=draw.choice((0, 1)))]
    return [*found, *_turns(draw, at)]


def _keeper(draw: random.Random, world: str, at: int) -> list[f.Fault]:
    """Somebody looks after the caches, or reads the run, while it is at work."""
    role = draw.choice(("compact", "compact", "compact", "verify", "gc", "report"))
    found: list[f.Fault] = [f.Arrive(at, role, machine=draw.choice((0, 1)))]
    if draw.random() < 0.3:
        found.append(f.Arrive(at + draw.randint(1, 40), "compact"))
    return [*found, *_turns(draw, at)]


def _turns(draw: random.Random, at: int) -> list[f.Fault]:
    """Moments at which another process goes on."""
    return [
        f.Switch(at + draw.randint(1, 120), draw.randint(0, 2)) for _ in range(draw.randint(1, 6))
    ]


def _stop(draw: random.Random, world: str, at: int) -> f.Fault:
    """A process stands still."""
    return f.Pause(at, seconds=draw.choice((5.0, 30.0, 65.0, 100.0, 400.0)))


def _slow(draw: random.Random, world: str, at: int) -> f.Fault:
    """A disk or a store is slow."""
    return f.Slow(at, seconds=draw.choice((3.0, 30.0, 100.0)))


def _away(draw: random.Random, world: str, at: int) -> f.Fault:
    """A store does not take what it is given."""
    seconds = draw.choice((1.0, 8.0, 30.0, 200.0))
    if world != "store":
        return f.FullDisk(at, seconds)
    return draw.choice(
        (
            f.Outage(at, seconds),
            f.Refused(at, draw.choice((1, 2, 5, 7, 20))),
            f.LostAnswer(at, draw.choice((1, 2, 3))),
            f.LostAnswer(at, 1),
        )
    )


def _listing(draw: random.Random, world: str, at: int) -> f.Fault:
    """A listing is not what it should be."""
    if draw.random() < 0.5:
        return f.StaleListing(at, draw.choice((5.0, 60.0, 600.0)))
    return f.PartialListing(at, draw.choice((2, 3)))


def _jump(draw: random.Random, world: str, at: int) -> f.Fault:
    """A date is wrong."""
    return f.ClockJump(at, draw.choice((-3600.0, -90.0, -20.0, 20.0, 90.0, 3600.0)))


def _rot(draw: random.Random, world: str, at: int) -> f.Fault:
    """Bytes change, or go."""
    kind = draw.choice(("flip", "flip", "cut", "swap", "swap", "empty", "lose"))
    of = draw.choice(("entry", "entry", "shard", "part", "part"))
    return f.Rot(at, kind, of, draw.randint(0, 30))


def _decode(draw: random.Random, world: str, at: int) -> f.Fault:
    """A decoder fails."""
    return f.BadDecode(at, draw.choice(("crash", "hang")))


def _ledger(draw: random.Random, world: str, at: int) -> list[f.Fault]:
    """Workers die, and what counts their deaths."""
    found: list[f.Fault] = [f.Kill(at), f.Kill(at + draw.randint(1, 40))]
    return [*found, f.LostLedger(at + draw.randint(1, 20))]


def _poison(draw: random.Random, world: str, at: int) -> f.Fault:
    """A clip kills its workers."""
    return f.Poison(draw.randint(1, 60), draw.randint(0, 4))


KINDS = {
    "death": _death,
    "second driver": _second_driver,
    "keeper": _keeper,
    "stop": _stop,
    "slow": _slow,
    "away": _away,
    "listing": _listing,
    "jump": _jump,
    "rot": _rot,
    "decode": _decode,
    "poison": _poison,
    "ledger": _ledger,
}


def _swapped(draw: random.Random, world: str, at: int) -> list[f.Fault]:
    """Token sets change places between two attempts."""
    at = draw.randint(60, 260)
    return [f.Kill(at), f.Rot(at + 1, "swap", "entry", draw.randint(0, 30))]


def _damaged_shard(draw: random.Random, world: str, at: int) -> f.Fault:
    """A shard is damaged before the job reads it."""
    kind = draw.choice(("flip", "flip", "swap", "cut"))
    return f.Rot(draw.randint(5, 40), kind, "shard", draw.randint(0, 30))


def _killed_keeper(draw: random.Random, world: str, at: int) -> list[f.Fault]:
    """Who compacts the caches is killed at that."""
    at = draw.randint(60, 260)
    turns = [f.Switch(at + 1, draw.randint(0, 2)), f.Switch(at + 3, draw.randint(0, 2))]
    return [f.Arrive(at, "compact"), *turns, f.Kill(at + draw.randint(4, 60))]


def _late_date(draw: random.Random, world: str, at: int) -> list[f.Fault]:
    """The date of a driver's machine goes back, then another machine looks at its lease."""
    at = draw.randint(5, 60)
    jump = f.ClockJump(at, draw.choice((-3600.0, -90.0)))
    arrival = f.Arrive(at + draw.randint(1, 40), "continue", machine=1)
    return [jump, arrival, *_turns(draw, arrival.at)]


NARROW = {
    "late date": _late_date,
    "swapped": _swapped,
    "damaged shard": _damaged_shard,
    "killed keeper": _killed_keeper,
}
"""Chains of `KINDS` that are rarely drawn by chance."""
