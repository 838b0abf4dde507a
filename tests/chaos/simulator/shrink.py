"""From a schedule that fails to a small one that fails in the same way, printed as a test."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from tests.chaos.simulator.faults import Fault, Schedule
from tests.chaos.simulator.simulate import simulate

MOST_RUNS = 150


def fails(schedule: Schedule) -> bool:
    """Whether a schedule shows a problem."""
    return bool(simulate(schedule).problem)


def shrink(schedule: Schedule, failing: Callable[[Schedule], bool] = fails) -> Schedule:
    """The smallest schedule found that still fails.

    Faults are left out in halves, quarters and one by one (Zeller's ddmin); then the rest is made
    plainer: a loop for a cluster, fewer clips.

    Args:
        schedule: Fails.
        failing: Whether a schedule fails.
    """
    left = [MOST_RUNS]

    def still(candidate: Schedule) -> bool:
        left[0] -= 1
        return left[0] > 0 and failing(candidate)

    faults = _ddmin(schedule.faults, lambda some: still(replace(schedule, faults=some)))
    schedule = replace(schedule, faults=faults)
    for change in (
        {"executor": "loop"},
        {"compacted": False},
        {"moves": False},
        {"order": 0},
        {"clips": 2},
        {"clips": 3},
        {"clips": 4},
    ):
        plainer = replace(schedule, **change)  # type: ignore[arg-type]
        if plainer != schedule and plainer.clips <= schedule.clips and still(plainer):
            schedule = plainer
    return schedule


def _ddmin(
    faults: tuple[Fault, ...], still: Callable[[tuple[Fault, ...]], bool]
) -> tuple[Fault, ...]:
    """Leave out as many faults as can be."""
    pieces = 2
    while len(faults) > 1:
        size = -(-len(faults) // pieces)
        for start in range(0, len(faults), size):
            rest = faults[:start] + faults[start + size :]
            if still(rest):
                faults, pieces = rest, max(2, pieces - 1)
                break
        else:
            if size == 1:
                break
            pieces = min(len(faults), 2 * pieces)
    if len(faults) == 1 and still(()):
        return ()
    return faults


def as_test(schedule: Schedule, seed: int, problem: str) -> str:
    """A test to paste into `tests/chaos/test_simulator.py`."""
    lines = schedule.printed().replace("\n", "\n    ")
    first = problem.strip().splitlines()[0][:90]
    return (
        f"def test_seed_{seed}():\n    # {first}\n    schedule = {lines}\n"
        "    assert not problem_of(schedule)\n"
    )
