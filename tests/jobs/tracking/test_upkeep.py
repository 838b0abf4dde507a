"""What a living sender does now and then: signs of life, and the runs of the dead."""

from __future__ import annotations

from dataclasses import replace

import pytest
from fake_clock import FakeClock
from live_jobs import new_run

from jobs.tracking.drivers import DRIVER_TAG, HEARTBEAT_TAG, SILENT_S, Driver
from jobs.tracking.mlflow_runs import MlflowRuns
from jobs.tracking.repair import repair
from jobs.tracking.replay import Replay
from jobs.tracking.run_files import RunDirectory
from jobs.tracking.spool import Sent, Spool
from jobs.tracking.upkeep import HEARTBEAT_S, REPAIR_S, Upkeep

# Of a sender on another machine than the job that looks for dead drivers.
ELSEWHERE = replace(Driver.this(), machine="another", host="far")


class Sending:
    """A sender of one job, its clock and the store."""

    def __init__(self, run_dir, uri, client):
        self.client, self.uri, self.clock = client, uri, FakeClock()
        self.experiment = client.create_experiment("tango")
        self.spool = Spool(run_dir / "tracking" / "events.jsonl")
        runs = MlflowRuns(client, self.experiment, run_dir.name)
        self._replay = Replay(runs, RunDirectory(run_dir), Sent.load(run_dir, uri))
        self._upkeep = Upkeep(self._replay, uri, self.clock)
        driver, directory = ELSEWHERE.to_tag(), "/on/another/machine"
        self._event("start", driver=driver, directory=directory)
        self.send()

    def send(self):
        """As the loop of the sender does."""
        self._replay.send()
        self._upkeep.now_and_then()

    def end(self, reason):
        """What the driver says when it ends."""
        self._event("end", status="FAILED", reason=reason)

    def repaired_elsewhere(self):
        """What a job does that starts on the third machine."""
        return repair(self.client, self.experiment, self.uri, clock=self.clock)

    @property
    def run(self):
        """As the store shows it."""
        return self.client.get_run(self._replay.sent.run)

    def _event(self, kind, **about):
        time_ms = int(1000 * self.clock.now().timestamp())
        self.spool.write({"kind": kind, "time": time_ms, **about})


@pytest.fixture
def sending(tmp_path, store, client):
    return Sending(new_run(tmp_path / "run"), store, client)


def test_a_living_driver_that_was_marked_as_killed_is_running_again(sending):
    sending.clock.sleep(2 * SILENT_S)  # the server was away from this sender
    assert sending.repaired_elsewhere() == [sending.run.info.run_id]
    assert (sending.run.info.status, "ended" in sending.run.data.tags) == ("KILLED", True)
    sending.send()
    assert (sending.run.info.status, "ended" in sending.run.data.tags) == ("RUNNING", False)
    assert sending.repaired_elsewhere() == []


def test_a_driver_without_samples_gives_signs_of_life(sending):
    for _ in range(int(2 * SILENT_S / HEARTBEAT_S)):
        sending.clock.sleep(HEARTBEAT_S)
        sending.send()
    seen = sending.run.data.tags[HEARTBEAT_TAG]
    assert seen == sending.clock.now().isoformat(timespec="seconds")
    assert sending.repaired_elsewhere() == []


def test_an_end_that_the_driver_itself_said_stays(sending):
    sending.end("no GPU")
    sending.clock.sleep(HEARTBEAT_S)
    sending.send()
    assert (sending.run.info.status, sending.run.data.tags["ended"]) == ("FAILED", "no GPU")


def test_a_run_that_another_driver_took_and_finished_stays_finished(sending):
    run = sending.run.info.run_id
    sending.client.set_tag(run, DRIVER_TAG, Driver.this().to_tag())
    sending.client.set_terminated(run)
    sending.clock.sleep(HEARTBEAT_S)
    sending.send()
    assert sending.run.info.status == "FINISHED"


def test_a_driver_that_dies_while_others_work_is_noticed_by_them(sending):
    heartbeat = sending.clock.now().isoformat()
    dead = replace(ELSEWHERE, host="dead", pid=7)
    tags = {DRIVER_TAG: dead.to_tag(), HEARTBEAT_TAG: heartbeat}
    run = sending.client.create_run(sending.experiment, tags=tags).info.run_id
    for _ in range(int((SILENT_S + REPAIR_S) / HEARTBEAT_S) + 1):
        assert sending.client.get_run(run).info.status == "RUNNING"
        sending.clock.sleep(HEARTBEAT_S)
        sending.send()
        if sending.client.get_run(run).info.status == "KILLED":
            return
    pytest.fail("nobody noticed")
