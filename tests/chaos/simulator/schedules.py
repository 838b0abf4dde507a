"""From a seed to a schedule: everything is drawn here, before anything runs."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence

from tests.chaos.simulator.faults import Fault, Schedule, WorldKind

STEPS = {"disk": 420, "shared": 420, "store": 200}
"""About the steps of a job with four clips and of a second process."""


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
    return [
        draw.choice(
            (
                Fault(at, "outage", seconds),
                Fault(at, "refused", draw.choice((1, 2, 5, 7, 20))),
                Fault(at, "lost answer", draw.choice((1, 1, 2, 3))),
            )
        )
    ]


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
