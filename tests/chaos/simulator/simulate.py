"""Run a schedule to its end, and judge what is left."""

from __future__ import annotations

import logging
import traceback
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cache

from tests.chaos.simulator import oracle
from tests.chaos.simulator.oracle import WrongError
from tests.chaos.simulator.running import Finished, Running
from tests.chaos.simulator.schedules import Fault, Schedule
from tests.chaos.simulator.world import Process, StuckError

MOST_ATTEMPTS = 12
"""After so many attempts nothing goes wrong any more."""
RESTART_S = 15.0
UNDISTURBED = 3
"""Attempts without a new fault after which the job must be done."""


@dataclass
class Outcome:
    """How a schedule ended.

    Attributes:
        problem: What the product did wrong; "" if nothing.
        attempts: How the attempts of drivers ended.
        struck: Faults that happened.
        steps: Steps of all processes.
    """

    problem: str = ""
    attempts: list[str] = field(default_factory=list)
    struck: list[Fault] = field(default_factory=list)
    steps: int = 0


def simulate(schedule: Schedule) -> Outcome:
    """Run a schedule.

    Drivers are started again, as a scheduler does, until one of them ends well. Then the run must
    be what an undisturbed job would have made of it, and stay so when the job is resumed once more.
    """
    reference = _reference(schedule.clips)
    running, outcome = Running(schedule), Outcome()
    with _silent():
        try:
            with running.active():
                running.reference = reference
                if schedule.compacted:
                    _fill(running)
                _run(running, outcome)
        except (WrongError, StuckError) as problem:
            outcome.problem = f"{type(problem).__name__}: {problem}"
        except Exception:  # what is left cannot even be read
            outcome.problem = traceback.format_exc()
    outcome.struck, outcome.steps = running.world.struck, running.world.steps
    return outcome


@contextmanager
def _silent() -> Iterator[None]:
    logging.disable(logging.CRITICAL)
    try:
        yield
    finally:
        logging.disable(logging.NOTSET)


@cache
def _reference(clips: int) -> dict[tuple[str, ...], object]:
    """The answers of an undisturbed job, and the tokens of its caches."""
    running = Running(Schedule(clips=clips))
    with _silent(), running.active():
        _ended_well(running, running.spawn("driver", 0))
        return oracle.expected(running)


def _ended_well(running: Running, process: Process) -> None:
    """Run the world until its end; raise what a process raised."""
    running.world.run()
    if process.error is not None:
        raise process.error


def _fill(running: Running) -> None:
    """Fill and compact the caches before anything goes wrong."""
    faults, running.world.faults = running.world.faults, {}
    _ended_well(running, running.spawn("driver", 0, kind="precompute"))
    _ended_well(running, running.spawn("compact", 0))
    running.world.steps, running.world.faults = 0, faults


def _run(running: Running, outcome: Outcome) -> None:
    """Start attempt after attempt, and resume the finished run."""
    schedule, world, bucket = running.schedule, running.world, running.bucket
    calm = attempt = 0
    has_rotted = False  # since a driver last looked at all parts
    incomplete: str | None = None  # a finished run with failed clips, which only --resume retries
    while True:
        running.decode_faults.clear()
        running.listing_faults.clear()
        before, begun = len(world.struck), len(world.processes)
        # A driver gives up after six refusals.
        is_away = world.time < max(running.disk.full_until, bucket.down_until) or bucket.refused > 0
        left, encoded = oracle.work_left(running, incomplete), running.num_encoded
        machine = attempt % 2 if schedule.moves else 0
        process = running.spawn("driver", machine, resume=incomplete)
        world.run()
        ended = world.processes[begun:]
        struck = world.struck[before:]
        for one in ended:
            outcome.attempts.append(_how(one))
            oracle.check_end(running, one)
            if one.is_driver:
                oracle.check_attempt(running, one, struck)
        oracle.check_whole(running)
        oracle.check_accounts(running)
        is_calm = not struck and not is_away
        if is_calm:
            result = process.value.result if process.error is None else None
            oracle.check_work(left, result, running.num_encoded - encoded)
        results = [one.value for one in ended if isinstance(one.value, Finished)]
        finished = [
            run for run, result in results if not result.num_missing + result.num_failed_clips
        ]
        rots = any(fault.kind == "rot" for fault in struck)
        has_rotted = rots or (has_rotted and not finished)
        done = finished or oracle.complete_runs(running)
        if done and not has_rotted:
            break
        incomplete = results[-1].run if results else incomplete
        calm = calm + 1 if is_calm else 0
        if calm >= UNDISTURBED:
            raise WrongError(f"{calm} attempts after the last fault: {outcome.attempts[-3:]}")
        attempt += 1
        if attempt == MOST_ATTEMPTS:
            world.faults.clear()
        world.time += RESTART_S
    for run in done:
        oracle.check_finished(running, run)
    if schedule.order % 3 == 0:
        _resume(running, outcome, done[-1])


def _resume(running: Running, outcome: Outcome, run: str) -> None:
    """Check that a finished run that is resumed has nothing to do."""
    world, bucket = running.world, running.bucket
    world.faults.clear()
    world.time = max(world.time, running.disk.full_until, bucket.down_until)
    bucket.refused = bucket.unanswered = 0
    process = running.spawn("driver", 0, resume=run)
    world.run()
    outcome.attempts.append(_how(process))
    if process.error is not None:
        raise WrongError(f"a finished run cannot be resumed: {outcome.attempts[-1]}")
    if clips := process.value.result.num_clips:
        raise WrongError(f"resuming a finished run asks {clips} clips again")
    oracle.check_finished(running, run)


def _how(process: Process) -> str:
    """How a process ended, in a line."""
    if process.error is not None:
        text = " ".join(str(process.error).split())[:200]
        return f"{process.name}: {type(process.error).__name__} {text}"
    if not process.is_driver:
        return f"{process.name}: done"
    r = process.value.result
    return (
        f"{process.name}: {r.num_clips} clips, {r.num_encoded} encoded, "
        f"{r.num_failed_clips} failed, {r.num_missing} missing"
    )
