"""Jobs in a simulated world: seeded schedules, those that found a fault, the simulator."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tests.chaos.mutations.faults import MUTATIONS
from tests.chaos.simulator.schedules import FAULTS, KINDS, Fault, Schedule, schedule_of
from tests.chaos.simulator.simulate import simulate
from tests.chaos.simulator.stores import DiskState, Inode


@pytest.mark.parametrize(
    "seeds",
    [
        *(range(first, first + 15) for first in range(0, 150, 15)),
        *(
            pytest.param(range(first, first + 30), marks=pytest.mark.slow)
            for first in range(1000, 1150, 30)
        ),
    ],
    ids=str,
)
def test_seeded_schedules_leave_every_answer_once_and_right(seeds):
    found = {seed: simulate(schedule_of(seed)).problem for seed in seeds}
    assert {seed: problem for seed, problem in found.items() if problem} == {}


FOUND = {
    # The digests of a part's clips were looked up as if they were sorted, so a resume deleted
    # finished answers together with the failed one.
    "a failed clip among others": Schedule(
        world="store", clips=3, order=3, faults=(Fault(24, "decode", "crash"),)
    ),
    # A fault of the judgement: the driver that was to look at the part was killed too early.
    "a finished run that rots": Schedule(
        world="store",
        clips=2,
        compacted=True,
        faults=(
            Fault(65, "kill"),
            Fault(92, "rot", ("flip", "part", 9)),
            Fault(142, "kill"),
        ),
    ),
    # A driver gives up after six refusals; three drivers are needed to use up twenty.
    "a store that refuses more than two drivers ask": Schedule(
        world="store",
        clips=5,
        faults=(Fault(68, "rot", ("cut", "part", 18)), Fault(133, "refused", 20)),
    ),
}


@pytest.mark.parametrize("name", FOUND)
def test_schedules_that_found_a_fault(name):
    assert not simulate(FOUND[name]).problem


@pytest.mark.parametrize("step", [99, 104, 112])
def test_a_driver_that_stood_still_in_a_renewal_goes_on_with_no_run_that_another_has_finished(step):
    # Between looking at its lease and writing it again: the second driver had given the lease back,
    # so the first one had it again, and asked everything once more.
    robbed = (Fault(step - 5, "arrive", ("steal", 1)), Fault(step, "pause", 600.0))
    outcome = simulate(Schedule(world="shared", faults=robbed))
    assert not outcome.problem
    assert outcome.attempts[0].startswith("driver-0: LeaseError")


@pytest.mark.parametrize("seed", [7, 12])
def test_a_schedule_does_the_same_every_time(seed):
    first, second = (simulate(schedule_of(seed)) for _ in range(2))
    assert first == second


def test_every_kind_of_fault_is_drawn_and_printed_as_python():
    schedules = [schedule_of(seed) for seed in range(2000)]
    assert {fault.kind for one in schedules for fault in one.faults} == {*FAULTS}
    assert all(eval(repr(one)) == one for one in schedules[:200])
    for kind in KINDS:
        assert schedule_of(1, kinds=(kind,)).faults


def test_a_power_failure_keeps_changes_in_order_and_forgets_what_was_not_synchronised():
    disk = DiskState({"a": Inode(bytearray(b"old"), synced=True)})
    disk.files["b"] = Inode(bytearray(b"new data"))
    disk.changed()
    disk.files["a"] = disk.files.pop("b")
    disk.changed()
    disk.cut_power(lost=1, torn=0.5)
    assert (disk.read("a"), disk.read("b")) == (b"old", b"new ")
    assert disk.paths() == ["a", "b"]


@pytest.mark.parametrize("world", ["disk", "shared", "store"])
def test_without_faults_one_attempt_does_it(world):
    outcome = simulate(Schedule(world=world))
    assert not outcome.problem
    assert outcome.attempts[0].endswith("4 clips, 4 encoded, 0 failed, 0 missing")
    assert outcome.attempts[1].endswith("0 clips, 0 encoded, 0 failed, 0 missing")


def test_what_a_mutation_replaces_exists():
    for mutation in MUTATIONS.values():
        with mutation.applied():
            pass


@pytest.mark.slow
@pytest.mark.timeout(1800)
def test_every_known_fault_is_found():
    command = [sys.executable, "-m", "tests.chaos.mutations.hunt"]
    root = Path(__file__).parents[2]
    done = subprocess.run(command, cwd=root, capture_output=True, text=True, timeout=1700)
    assert done.returncode == 0, done.stdout + done.stderr[-2000:]
    assert len(MUTATIONS) >= 28
