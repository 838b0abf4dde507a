"""Jobs in a simulated world: seeded schedules, those that found a fault, the simulator."""

from __future__ import annotations

import pytest
from simulated import outcome_of, problem_of, problems_of

from tests.chaos.simulator import faults as f
from tests.chaos.simulator.disk import DiskState, Inode
from tests.chaos.simulator.faults import *  # noqa: F403  (printed schedules are read back)
from tests.chaos.simulator.faults import Arrive, BadDecode, Kill, Pause, Rot, Schedule
from tests.chaos.simulator.schedules import KINDS, schedule_of


@pytest.mark.parametrize("first", range(0, 150, 15))
def test_seeded_schedules_leave_every_answer_once_and_right(first):
    assert problems_of(range(first, first + 15)) == {}


@pytest.mark.slow
@pytest.mark.parametrize("first", range(1000, 1150, 30))
def test_more_seeded_schedules_leave_every_answer_once_and_right(first):
    assert problems_of(range(first, first + 30)) == {}


def test_a_failed_clip_of_a_resumed_run_costs_no_other_clip_its_answers():
    # Found by a seed: the digests of a part's clips were looked up as if they were sorted, so a
    # resume deleted finished answers together with the failed one.
    schedule = Schedule(
        world="store",
        executor="cluster",
        clips=3,
        faults=(BadDecode(at=24, how="crash"), BadDecode(at=94, how="hang")),
    )
    assert not problem_of(schedule)


@pytest.mark.parametrize("step", [99, 104, 109])
def test_a_driver_that_stood_still_in_a_renewal_goes_on_with_no_run_that_another_has_finished(step):
    # Between looking at its lease and writing it again: the second driver had given the lease back,
    # so the first one had it again, and asked everything once more.
    robbed = (Arrive(at=step - 5, role="steal", machine=1), Pause(at=step, seconds=600.0))
    outcome = outcome_of(Schedule(world="shared", faults=robbed))
    assert not outcome.problem
    assert outcome.attempts[0].startswith("driver-0: LeaseError")


def test_a_finished_run_that_rots_is_not_judged_before_a_driver_has_looked_at_it_again():
    # Found by a seed, a fault of the judgement: the driver that was to look was killed too early.
    rotted = (Kill(at=65), Rot(at=92, kind="flip", of="part", which=9), Kill(at=142))
    schedule = Schedule(world="store", executor="cluster", clips=2, compacted=True, faults=rotted)
    outcome = outcome_of(schedule)
    assert not outcome.problem
    assert "Killed" in outcome.attempts[1]
    assert any("0 failed, 0 missing" in line for line in outcome.attempts[2:])


def test_a_store_that_refuses_more_than_two_drivers_ask_is_still_a_fault():
    """A driver gives up after six refusals; three drivers are needed to use up twenty."""
    schedule = Schedule(
        world="store", clips=5, faults=(Rot(68, "cut", "part", 18), f.Refused(133, times=20))
    )
    assert not problem_of(schedule)


@pytest.mark.parametrize("seed", [7, 12])
def test_a_schedule_does_the_same_every_time(seed):
    schedule = schedule_of(seed)
    first, second = (outcome_of(schedule, trace=True) for _ in range(2))
    assert first.trace == second.trace
    assert first.struck == second.struck


def test_a_schedule_says_all_of_itself_as_python():
    for seed in range(200):
        schedule = schedule_of(seed)
        assert eval(schedule.printed()) == schedule


def test_every_kind_of_fault_is_drawn():
    drawn = {type(fault) for seed in range(2000) for fault in schedule_of(seed).faults}
    known = {
        value
        for value in vars(f).values()
        if isinstance(value, type) and issubclass(value, f.Fault) and value is not f.Fault
    }
    assert drawn == known
    for kind in KINDS:
        assert schedule_of(1, kinds=(kind,)).faults


def test_a_power_failure_keeps_changes_in_order_and_forgets_what_was_not_synchronised():
    disk = DiskState()
    old, new = Inode(bytearray(b"old"), synced=True), Inode(bytearray(b"new data"))
    disk.change(lambda names: names.files.__setitem__("a", old))
    disk.settle()
    disk.change(lambda names: names.files.__setitem__("b", new))
    disk.change(lambda names: names.files.__setitem__("a", names.files.pop("b")))
    disk.cut_power(lost=1, torn=0.5)
    assert (disk.read("a"), disk.read("b")) == (b"old", b"new ")
    assert disk.paths() == ["a", "b"]


@pytest.mark.parametrize("world", ["disk", "shared", "store"])
def test_without_faults_one_attempt_does_it(world):
    outcome = outcome_of(Schedule(world=world))
    assert not outcome.problem
    assert outcome.attempts[0].endswith("4 clips, 4 encoded, 0 failed, 0 missing")
    assert outcome.attempts[1].endswith("0 clips, 0 encoded, 0 failed, 0 missing")
