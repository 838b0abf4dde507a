"""Runs that say RUNNING although nobody works on them."""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta

import pytest
from fake_clock import START, FakeClock
from live_jobs import finish, new_run

from jobs.tracking.drivers import DIRECTORY_TAG, DRIVER_TAG, HEARTBEAT_TAG, SILENT_S, Driver
from jobs.tracking.repair import repair
from jobs.tracking.spool import Spool
from pipeline.lease import EXPIRES_S, FileLease
from pipeline.storage import Storage

ME = Driver.this()
DEAD = replace(ME, pid=2**22 + 1)
REUSED = replace(ME, started="1")
ELSEWHERE = replace(ME, machine="another", host="far")


@pytest.fixture
def running(client):
    """`running(driver, silent_s, **tags)` makes a RUNNING run and gives its id."""
    experiment = client.create_experiment("tango")

    def make(driver=None, silent_s=0.0, **tags):
        seen = (START - timedelta(seconds=silent_s)).isoformat()
        ours = {DRIVER_TAG: driver.to_tag(), HEARTBEAT_TAG: seen} if driver else {}
        return client.create_run(experiment, start_time=1, tags={**ours, **tags}).info.run_id

    def repaired(**options):
        return repair(client, experiment, "sqlite://", **{"clock": FakeClock(), **options})

    make.repair = repaired
    return make


def test_runs_of_dead_drivers_are_killed_at_their_last_sign_of_life(running, client):
    dead = {
        running(DEAD, 60.0),
        running(REUSED, 60.0),
        running(ELSEWHERE, SILENT_S + 1),
    }
    kept = {
        running(ME, 10 * SILENT_S),  # its store was away
        running(ELSEWHERE, SILENT_S - 1),
        running(),  # somebody else's
    }
    spared = running(DEAD, 60.0)
    assert set(running.repair(spare=spared)) == dead
    for run in dead:
        assert client.get_run(run).info.status == "KILLED"
    for run in (*kept, spared):
        assert client.get_run(run).info.status == "RUNNING"
    ended = {client.get_run(run).info.end_time for run in dead}
    assert max(ended) == int(1000 * (START.timestamp() - 60))
    assert running.repair(spare=spared) == []


def test_what_the_driver_wrote_before_it_died_counts(running, client, tmp_path):
    run_dir = new_run(tmp_path / "stopped")
    events = Spool(run_dir / "tracking" / "events.jsonl")
    events.write({"kind": "start", "time": 1, "driver": DEAD.to_tag(), "directory": str(run_dir)})
    metrics = {"live/clips": 4}
    events.write({"kind": "sample", "time": 2, "step": 4, "metrics": metrics})
    events.write({"kind": "end", "time": 3, "status": "FAILED", "reason": "no GPU"})
    tags = {DIRECTORY_TAG: str(run_dir), "tango.run_id": "stopped"}
    run = running(DEAD, 60.0, **tags)
    running.repair()
    data = client.get_run(run)
    assert (data.info.status, data.data.tags["ended"]) == ("FAILED", "no GPU")
    assert data.data.metrics["live/clips"] == 4, "what the store had missed"


def test_a_run_whose_results_are_there_has_finished(running, client, tmp_path):
    run_dir = new_run(tmp_path / "complete")
    finish(run_dir)
    run = running(DEAD, 60.0, **{DIRECTORY_TAG: str(run_dir), "tango.run_id": "complete"})
    running.repair()
    assert client.get_run(run).info.status == "FINISHED"


def test_a_silent_driver_whose_lease_is_renewed_lives(running, client, tmp_path):
    run_dir = new_run(tmp_path / "shared")
    run = running(ELSEWHERE, 10 * SILENT_S, **{DIRECTORY_TAG: str(run_dir)})
    FileLease(Storage.at(run_dir), FakeClock()).take()
    assert running.repair() == [], "only the tracking server does not hear it"
    assert running.repair(clock=FakeClock(EXPIRES_S + 1)) == [run]
    assert client.get_run(run).info.status == "KILLED"
