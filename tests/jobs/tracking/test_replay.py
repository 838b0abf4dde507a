"""From the record of a job to MLflow, whatever happens in between."""

from __future__ import annotations

import shutil

import pytest
from live_jobs import RECIPE, finish, new_run

from jobs.tracking.drivers import Driver
from jobs.tracking.log_run import log_run
from jobs.tracking.mlflow_runs import MlflowRuns
from jobs.tracking.replay import Replay
from jobs.tracking.run_files import RunDirectory
from jobs.tracking.server import TrackingError, experiment_id, mlflow_client
from jobs.tracking.spool import Sent, Spool

SECRET = "s3cr3t"


def start(run_dir, time_ms=1000, driver=None):
    about = {"command": "evaluate", "driver": (driver or Driver.this()).to_tag()}
    Spool(run_dir / "tracking" / "events.jsonl").write(
        {"kind": "start", "time": time_ms, "directory": str(run_dir), "num_clips": 9, **about}
    )


def samples(run_dir, *steps):
    spool = Spool(run_dir / "tracking" / "events.jsonl")
    for step in steps:
        metrics = {"live/clips": step, "accuracy": 0.5}
        spool.write({"kind": "sample", "time": 1000 + 10 * step, "step": step, "metrics": metrics})


def end(run_dir, status, time_ms=9000):
    event = {"kind": "end", "time": time_ms, "status": status, "reason": "a reason"}
    Spool(run_dir / "tracking" / "events.jsonl").write(event)


def replay(run_dir, store, client=None):
    client = client or mlflow_client(store)
    files = RunDirectory(run_dir)
    experiment = experiment_id(client, "tango", store, files.artifact_root())
    again = Replay(MlflowRuns(client, experiment, run_dir.name), files, Sent.load(run_dir, store))
    again.send()
    return again.sent.run


@pytest.fixture
def run_dir(tmp_path):
    return new_run(tmp_path / "run")


def history(client, run, name="live/clips"):
    return sorted((point.step, point.value) for point in client.get_metric_history(run, name))


def test_a_job_that_began_is_running_with_its_settings(run_dir, store, client):
    start(run_dir)
    run = client.get_run(replay(run_dir, store))
    assert (run.info.status, run.info.start_time, run.info.run_name) == ("RUNNING", 1000, "run")
    assert run.data.params["method.retention"] == "0.1"
    assert run.data.tags["model"] == "tiny"
    assert run.data.tags["mlflow.note.content"].endswith("9 clips. It has no results yet.")
    assert run.inputs.dataset_inputs[0].dataset.name == "shapes:test"


def test_samples_keep_their_times_and_are_sent_once(run_dir, store, client):
    start(run_dir)
    samples(run_dir, 1, 2)
    run = replay(run_dir, store)
    samples(run_dir, 3)
    assert replay(run_dir, store) == run
    assert history(client, run) == [(1, 1), (2, 2), (3, 3)]
    assert {point.timestamp for point in client.get_metric_history(run, "live/clips")} == {
        1010,
        1020,
        1030,
    }
    (run_dir / "tracking" / "sent.json").unlink()
    replay(run_dir, store)
    assert history(client, run) == [(1, 1), (2, 2), (3, 3)], "sent twice, there once"


def test_a_store_that_goes_away_in_the_middle_misses_nothing_in_the_end(run_dir, store, client):
    start(run_dir)
    samples(run_dir, *range(1200))
    broken = mlflow_client(store)
    requests, log_batch = [], broken.log_batch

    def breaks(*arguments, metrics=(), **others):
        requests.append(len(metrics))
        if metrics and sum(map(bool, requests)) == 2:
            raise ConnectionResetError("gone")
        return log_batch(*arguments, metrics=metrics, **others)

    broken.log_batch = breaks
    with pytest.raises(ConnectionResetError):
        replay(run_dir, store, broken)
    run = replay(run_dir, store)
    assert [step for step, _ in history(client, run)] == list(range(1200))


def test_a_job_says_how_it_ended_and_a_resumed_one_runs_again(run_dir, store, client):
    start(run_dir)
    end(run_dir, "FAILED")
    run = replay(run_dir, store)
    ended = client.get_run(run)
    assert (ended.info.status, ended.info.end_time) == ("FAILED", 9000)
    assert ended.data.tags["ended"] == "a reason"
    start(run_dir, 20_000)
    assert replay(run_dir, store) == run
    again = client.get_run(run)
    assert (again.info.status, "ended" in again.data.tags) == ("RUNNING", False)


def test_a_finished_run_does_not_say_that_its_driver_died(run_dir, store, client):
    dead = Driver("gone", Driver.this().machine, 2**22 + 1, "1")
    start(run_dir, driver=dead)
    run = log_run(run_dir, store)
    assert client.get_run(run).data.tags["ended"] == "the driver died without a word"
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
    assert client.get_run(run).info.status == "FINISHED"
    assert "no results yet" not in data.tags["mlflow.note.content"]


def test_a_run_that_never_finished_is_uploaded_as_far_as_it_came(run_dir, store, client):
    dead = Driver("gone", Driver.this().machine, 2**22 + 1, "1")
    start(run_dir, driver=dead)
    samples(run_dir, 1, 2)
    run = log_run(run_dir, store)
    assert client.get_run(run).info.status == "KILLED"
    assert client.get_run(run).info.end_time == 1000, "its last sign of life, in whole seconds"
    assert history(client, run) == [(1, 1), (2, 2)]


def test_passwords_in_urls_are_neither_stored_nor_sent(tmp_path, store, client):
    bucket = f"s3://key:{SECRET}@bucket/videos"
    recipe = {**RECIPE, "benchmark": {**RECIPE["benchmark"], "root": bucket}}
    run_dir = new_run(tmp_path / "run", recipe)
    start(run_dir)
    end(run_dir, "FAILED")
    with Spool(run_dir / "tracking" / "events.jsonl").path.open("a") as file:
        file.write("\n")
    finish(run_dir)
    run = log_run(run_dir, store)
    assert client.get_run(run).data.params["benchmark.root"] == "s3://***@bucket/videos"
    for path in tmp_path.rglob("*"):
        if path.is_file() and path != run_dir / "job.yaml":
            assert SECRET.encode() not in path.read_bytes(), path


def test_an_error_of_a_server_does_not_name_its_password(run_dir):
    finish(run_dir)
    with pytest.raises(TrackingError) as error:
        log_run(run_dir, f"foo://me:{SECRET}@host")
    assert SECRET not in str(error.value)


def test_jobs_of_one_second_in_two_directories_are_two_runs(tmp_path, store):
    one, other = (new_run(tmp_path / folder / "run") for folder in ("0", "1"))
    found = []
    for run_dir in (one, other, one, other):
        start(run_dir)
        found.append(replay(run_dir, store))
    assert found == [*found[:2], *found[:2]]
    assert found[0] != found[1]


def test_a_directory_that_was_moved_has_its_run_still(tmp_path, store):
    before = new_run(tmp_path / "before" / "run")
    start(before)
    found = replay(before, store)
    after = new_run(tmp_path / "after" / "run")
    shutil.rmtree(before)
    start(after)
    assert replay(after, store) == found
