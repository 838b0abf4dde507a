"""Run a schedule to its end, and judge what is left."""

from __future__ import annotations

import logging
import traceback
from dataclasses import dataclass, field
from functools import cache, partial

from jobs.config.recipe import RecipeError
from pipeline.runtime.stopping import Stopped
from pipeline.storage.faults import StoreError
from pipeline.storage.leases import LeaseError
from pipeline.storage.seal import DamagedFileError
from tests.chaos.simulator import faults as f
from tests.chaos.simulator.oracle import (
    WrongError,
    check_accounts,
    check_attempt,
    check_finished,
    check_whole,
    check_work,
    complete_runs,
    expected,
    work_left,
)
from tests.chaos.simulator.programs import Finished, compact, drive
from tests.chaos.simulator.running import Running
from tests.chaos.simulator.world import Killed, Process, StuckError

MOST_ATTEMPTS = 12
"""After so many nothing goes wrong any more."""
RESTART_S = 15.0
UNDISTURBED = 3
"""Attempts without a new fault after which the job must be done."""


@dataclass
class Outcome:
    """How a schedule ended.

    Attributes:
        schedule: What went wrong.
        problem: What the product did wrong; "" if nothing.
        attempts: How the attempts of drivers ended.
        struck: Faults that happened.
        steps: Of all processes.
        trace: A line per step, if asked for.
    """

    schedule: f.Schedule
    problem: str = ""
    attempts: list[str] = field(default_factory=list)
    struck: list[f.Fault] = field(default_factory=list)
    steps: int = 0
    trace: list[str] = field(default_factory=list)


def simulate(schedule: f.Schedule, *, trace: bool = False) -> Outcome:
    """Run a schedule.

    Drivers are started again, as a scheduler does, until one of them ends well. Then the run must
    be what an undisturbed job would have made of it, and stay so when the job is resumed once more.
    """
    reference = _reference(schedule.clips)
    logging.disable(logging.CRITICAL)
    running = Running(schedule, trace=trace)
    outcome = Outcome(schedule)
    try:
        with running.active():
            running.reference = reference
            if schedule.compacted:
                _fill(running)
            _run(running, outcome, reference)
    except (WrongError, StuckError) as problem:
        outcome.problem = f"{type(problem).__name__}: {problem}"
    except Exception as error:  # what is left cannot even be read
        lines = "".join(traceback.format_exception(error))
        outcome.problem = f"{type(error).__name__}: {error}\n{lines}"
    finally:
        logging.disable(logging.NOTSET)
    outcome.struck, outcome.steps = running.world.struck, running.world.steps
    outcome.trace = running.world.trace or []
    return outcome


@cache
def _reference(clips: int) -> dict[tuple[str, ...], tuple[object, ...]]:
    """The answers of an undisturbed job, and its caches' tokens."""
    running = Running(f.Schedule(clips=clips))
    logging.disable(logging.CRITICAL)
    try:
        with running.active():
            process = running.world.spawn("driver-0", 0, partial(drive, running))
            running.world.run()
            if process.error is not None:
                raise process.error
            return expected(running)
    finally:
        logging.disable(logging.NOTSET)


def _run(running: Running, outcome: Outcome, reference: dict[tuple[str, ...], object]) -> None:
    """Attempt after attempt."""
    schedule, world = running.schedule, running.world
    calm = attempt = 0
    has_rotted = False  # since a driver has last looked at all parts
    incomplete: str | None = (
        None  # a finished run with failed clips, which only --resume asks again
    )
    while True:
        running.decode_faults.clear()
        running.listing_faults.clear()
        before, begun = len(world.struck), len(world.processes)
        is_away = world.time < max(running.disk.full_until, running.bucket.down_until) or bool(
            running.bucket.refused  # a driver gives up after six of them
        )
        left = work_left(running, reference, incomplete)
        encoded = len(running.encoded)
        machine = attempt % 2 if schedule.moves and schedule.world != "disk" else 0
        name = f"driver-{len(world.processes)}"
        process = world.spawn(name, machine, partial(drive, running, resume=incomplete))
        world.run()
        for one in world.processes[begun:]:
            if one.parent is None:
                outcome.attempts.append(_how(one))
                _judge(running, one)
                if one.is_driver:
                    check_attempt(running, one, world.struck[before:])
        check_whole(running)
        check_accounts(running)
        is_calm = len(world.struck) == before and not is_away
        if is_calm:
            encoded = len(running.encoded) - encoded
            check_work(left, process.value.result if process.error is None else None, encoded)
        finished = _finished(world.processes[begun:])
        has_rotted = any(isinstance(fault, f.Rot) for fault in world.struck[before:]) or (
            has_rotted and not finished
        )
        done = finished or complete_runs(running)
        if done and not has_rotted:
            break
        ended = [
            one.value.run for one in world.processes[begun:] if isinstance(one.value, Finished)
        ]
        incomplete = ended[-1] if ended else incomplete
        calm = calm + 1 if is_calm else 0
        if calm >= UNDISTURBED:
            raise WrongError(f"{calm} attempts after the last fault: {outcome.attempts[-3:]}")
        attempt += 1
        if attempt == MOST_ATTEMPTS:
            world.faults.clear()
        world.time += RESTART_S
    for run in done:
        check_finished(running, run, reference)
    if schedule.order % 3 == 0:
        _resume(running, outcome, done[-1], reference)


def _fill(running: Running) -> None:
    """Full and compacted caches, before anything goes wrong."""
    world = running.world
    faults, world.faults = world.faults, {}
    for name, program in (
        ("driver-0", partial(drive, running, kind="precompute")),
        ("compact", partial(compact, running)),
    ):
        process = world.spawn(name, 0, program)
        world.run()
        if process.error is not None:
            raise process.error
    world.steps, world.faults = 0, faults


def _finished(processes: list[Process]) -> list[str]:
    """Runs that a driver has called complete."""
    return [
        one.value.run
        for one in processes
        if isinstance(one.value, Finished)
        and not one.value.result.num_missing
        and not one.value.result.num_failed_clips
    ]


def _resume(
    running: Running, outcome: Outcome, run: str, reference: dict[tuple[str, ...], object]
) -> None:
    """A finished run that is resumed has nothing to do."""
    world = running.world
    world.faults.clear()
    # On a full disk it would end in a line, as any driver.
    world.time = max(world.time, running.disk.full_until, running.bucket.down_until)
    running.bucket.refused = running.bucket.unanswered = 0
    process = world.spawn(f"driver-{len(world.processes)}", 0, partial(drive, running, resume=run))
    world.run()
    outcome.attempts.append(_how(process))
    _judge(running, process)
    if process.error is not None:
        raise WrongError(f"a finished run cannot be resumed: {outcome.attempts[-1]}")
    if process.value.result.num_clips:
        raise WrongError(
            f"resuming a finished run asks {process.value.result.num_clips} clips again"
        )
    check_finished(running, run, reference)


def _has_rotted(running: Running, what: str) -> bool:
    """Whether a file of a kind has been damaged."""
    return any(isinstance(fault, f.Rot) and fault.of == what for fault in running.world.struck)


def _was_taken_away(running: Running, text: str) -> bool:
    """Whether a file is missing that was lost, or removed by another driver, after the counting.

    The next driver goes on with the run, because it has no summary.
    """
    if "continue the run with --resume" in text or "/answers/part-" in text:
        return _has_rotted(running, "part")
    return "/facts.json" in text and any(isinstance(one, f.Arrive) for one in running.world.struck)


def _how(process: Process) -> str:
    """How a process ended, in a line."""
    if process.error is None:
        value = process.value
        if isinstance(value, Finished):
            r = value.result
            return (
                f"{process.name}: {r.num_clips} clips, {r.num_encoded} encoded, "
                f"{r.num_failed_clips} failed, {r.num_missing} missing"
            )
        return f"{process.name}: done"
    text = " ".join(str(process.error).split())[:200]
    return f"{process.name}: {type(process.error).__name__} {text}"


def _judge(running: Running, process: Process) -> None:
    """A process ends well, is killed, or says in one line what keeps it from its work."""
    error = process.error
    if error is None or isinstance(error, (Killed, Stopped, LeaseError, StoreError)):
        return
    if isinstance(error, RecipeError) and isinstance(error.__cause__, OSError):
        return
    if isinstance(error, OSError) and not isinstance(error, (FileNotFoundError, FileExistsError)):
        return  # a disk or a store that does not work, outside of what waits for it
    if isinstance(error, DamagedFileError) and _has_rotted(running, "part"):
        return  # after it was written; the next driver sets it aside
    if isinstance(error, FileNotFoundError) and _was_taken_away(running, str(error)):
        return
    if isinstance(error, ValueError) and not process.is_driver:
        return  # what looks after caches may refuse in one line; the job goes on
    lines = traceback.format_exception(error)
    raise WrongError(f"{process.name} ended with {type(error).__name__}: {error}\n{''.join(lines)}")
