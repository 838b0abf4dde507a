"""The events of a job become its MLflow run, whatever happens in between."""

from __future__ import annotations

import json
import shutil

import pytest
from fake_clock import FakeClock
from live_jobs import RECIPE, finish, new_run

from jobs.tracking.events import EventFile
from jobs.tracking.runs import DIRECTORY_TAG, DRIVER_TAG, this_driver
from jobs.tracking.server import TrackingError
from jobs.tracking.upload import RunUpload, log_run
from pipeline.storage import Storage
from pipeline.storage.leases import EXPIRES_S, Lease

SECRET = "s3cr3t"
ME = this_driver()
DEAD = json.dumps({**json.loads(ME), "pid": 2**22 + 1})
REUSED = json.dumps({**json.loads(ME), "started": "1"})
ELSEWHERE = json.dumps({**json.loads(ME), "machine": "another", "host": "far"})


def write(run_dir, kind, time_ms, **about):
    EventFile(run_dir / "tracking" / "events.jsonl").write({"kind": kind, "time": time_ms, **about})


def start(run_dir, time_ms=1000, driver=ME):
    about = {"command": "evaluate", "driver": driver, "num_clips": 9}
    write(run_dir, "start", time_ms, directory=str(run_dir), **about)


def samples(run_dir, *steps):
    for step in steps:
        metrics = {"live/clips": step, "accuracy": 0.5}
        write(run_dir, "sample", 1000 + 10 * step, step=step, metrics=metrics)


def end(run_dir, status, reason="a reason"):
    write(run_dir, "end", 9000, status=status, reason=reason)


@pytest.fixture
def run_dir(tmp_path):
    return new_run(tmp_path / "run")


def history(client, run, name="live/clips"):
    return sorted((point.step, point.value) for point in client.get_metric_history(run, name))


def test_a_job_that_began_is_running_with_its_settings(run_dir, store, client):
    start(run_dir)
    run = client.get_run(log_run(run_dir, store))
    assert (run.info.status, run.info.start_time, run.info.run_name) == ("RUNNING", 1000, "run")
    assert run.data.params["method.retention"] == "0.1"
    assert run.data.tags["model"] == "tiny"
    assert run.data.tags["mlflow.note.content"].endswith("9 clips. It has no results yet.")
    assert run.inputs.dataset_inputs[0].dataset.name == "shapes:test"


def test_samples_keep_their_times_and_are_there_once(run_dir, store, client):
    start(run_dir)
    samples(run_dir, 1, 2)
    upload = RunUpload(run_dir, store)
    run = upload.events()
    samples(run_dir, 3)
    upload.events()
    assert log_run(run_dir, store) == run, "sent twice"
    assert history(client, run) == [(1, 1), (2, 2), (3, 3)]
    times = {point.timestamp for point in client.get_metric_history(run, "live/clips")}
    assert times == {1010, 1020, 1030}


def test_a_store_that_goes_away_in_the_middle_misses_nothing_in_the_end(
    run_dir, store, client, monkeypatch
):
    from mlflow import MlflowClient

    start(run_dir)
    samples(run_dir, *range(1200))
    requests, log_batch = [], MlflowClient.log_batch

    def breaks(self, *arguments, metrics=(), **others):
        requests.append(len(metrics))
        if metrics and sum(map(bool, requests)) == 2:
            raise ConnectionResetError("gone")
        return log_batch(self, *arguments, metrics=metrics, **others)

    upload = RunUpload(run_dir, store)
    with monkeypatch.context() as broken:
        broken.setattr(MlflowClient, "log_batch", breaks)
        with pytest.raises(TrackingError, match=r"^ConnectionResetError: gone$"):
            upload.events()
    run = upload.events()
    assert [step for step, _ in history(client, run)] == list(range(1200))


def test_a_job_ends_as_recorded_and_a_resumed_one_runs_again(run_dir, store, client):
    start(run_dir)
    end(run_dir, "FAILED")
    run = log_run(run_dir, store)
    ended = client.get_run(run)
    assert (ended.info.status, ended.info.end_time) == ("FAILED", 9000)
    assert ended.data.tags["ended"] == "a reason"
    start(run_dir, 20_000)
    assert log_run(run_dir, store) == run
    again = client.get_run(run)
    assert (again.info.status, "ended" in again.data.tags) == ("RUNNING", False)


def test_a_killed_run_is_uploaded_as_far_as_it_came_and_may_be_finished_later(
    run_dir, store, client
):
    start(run_dir, driver=DEAD)
    samples(run_dir, 1, 2)
    run = log_run(run_dir, store)
    killed = client.get_run(run)
    assert (killed.info.status, killed.info.end_time) == ("KILLED", 1020)
    assert "driver died" in killed.data.tags["ended"]
    assert history(client, run) == [(1, 1), (2, 2)]
    finish(run_dir)
    assert log_run(run_dir, store) == run
    finished = client.get_run(run)
    assert (finished.info.status, "ended" in finished.data.tags) == ("FINISHED", False)


def test_results_replace_what_was_shown_on_the_way(run_dir, store, client):
    start(run_dir)
    samples(run_dir, 1, 7)
    finish(run_dir)
    run = log_run(run_dir, store)
    data = client.get_run(run).data
    assert data.metrics["accuracy"] != 0.5, "the last point is that of the results"
    assert data.metrics["live/clips"] == 7
    assert "no results yet" not in data.tags["mlflow.note.content"]


def test_passwords_in_urls_are_neither_stored_nor_sent(tmp_path, store, client):
    bucket = f"s3://key:{SECRET}@bucket/videos"
    recipe = {**RECIPE, "benchmark": {**RECIPE["benchmark"], "root": bucket}}
    run_dir = new_run(tmp_path / "run", recipe)
    start(run_dir)
    end(run_dir, "FAILED", f"cannot read {bucket}")
    finish(run_dir)
    run = log_run(run_dir, store)
    assert client.get_run(run).data.params["benchmark.root"] == "s3://***@bucket/videos"
    for path in tmp_path.rglob("*"):
        if path.is_file() and path != run_dir / "job.yaml":
            assert SECRET.encode() not in path.read_bytes(), path
    with pytest.raises(TrackingError) as error:
        log_run(run_dir, f"foo://me:{SECRET}@host")
    assert SECRET not in str(error.value)


def test_jobs_of_one_second_in_two_directories_are_two_runs(tmp_path, store):
    one, other = (new_run(tmp_path / folder / "run") for folder in ("0", "1"))
    found = []
    for run_dir in (one, other, one, other):
        start(run_dir)
        found.append(log_run(run_dir, store))
    assert found == [*found[:2], *found[:2]]
    assert found[0] != found[1]


def test_a_directory_that_was_moved_has_its_run_still(tmp_path, store):
    before = new_run(tmp_path / "before" / "run")
    start(before)
    found = log_run(before, store)
    after = new_run(tmp_path / "after" / "run")
    shutil.rmtree(before)
    start(after)
    assert log_run(after, store) == found


class TestDeadDrivers:
    """Runs that say RUNNING although nobody works on them."""

    @pytest.fixture
    def running(self, client, store, tmp_path):
        """`running(driver, **tags)` makes a RUNNING run and gives its id."""
        own = new_run(tmp_path / "own")
        start(own)
        upload = RunUpload(own, store)

        def make(driver=None, **tags):
            ours = {DRIVER_TAG: driver} if driver else {}
            experiment = upload.runs.experiment
            return client.create_run(experiment, start_time=1, tags={**ours, **tags}).info.run_id

        make.upload = upload
        return make

    def test_of_this_machine_are_killed_at_the_next_start(self, running, client, tmp_path):
        complete = new_run(tmp_path / "complete")
        finish(complete)
        expected = {
            running(DEAD): "KILLED",
            running(REUSED): "KILLED",  # its process id is another's now
            running(DEAD, **{DIRECTORY_TAG: str(complete)}): "FINISHED",
            running(ME): "RUNNING",
            running(ELSEWHERE): "RUNNING",
            running(): "RUNNING",  # somebody else's
        }
        running.upload.end_dead_runs()
        assert {run: client.get_run(run).info.status for run in expected} == expected

    def test_of_another_machine_are_killed_by_log_run_unless_their_lease_lives(
        self, store, client, tmp_path
    ):
        run_dir = new_run(tmp_path / "shared")
        start(run_dir, driver=ELSEWHERE)
        Lease(Storage.at(run_dir), FakeClock()).take()
        for clock, status in ((FakeClock(), "RUNNING"), (FakeClock(EXPIRES_S + 1), "KILLED")):
            run = log_run(run_dir, store, clock=clock)
            assert client.get_run(run).info.status == status
