"""The events of a run in an S3 store outlive its driver: what is copied, when, and read back."""

from __future__ import annotations

import logging
import os
import socket
import subprocess
import sys
from pathlib import Path

import pytest
import yaml
from fake_clock import FakeClock
from live_jobs import RECIPE, plan, until
from s3_server import new_bucket, s3_of_this_process, times

from jobs.run.desk import desk_of
from jobs.tracking.events import EventFile, read_events
from jobs.tracking.live import LiveRun
from jobs.tracking.stored_events import StoredEvents, run_with_events
from pipeline.storage.leases import LeaseError
from pipeline.storage.objects import ObjectStore
from pipeline.storage.urls import Url

EVERY_S = 10.0


@pytest.fixture(scope="module")
def server():
    with s3_of_this_process() as server:
        yield server


@pytest.fixture
def run_dir(server):
    """A run in a bucket of its own that holds its recipe."""
    where = Url(f"s3://{new_bucket(server)}/runs/run")
    ObjectStore("s3").write((where / "job.yaml").path, yaml.safe_dump(RECIPE).encode())
    server.requests.clear()
    return where


@pytest.fixture(autouse=True)
def patient(monkeypatch):
    """A busy machine has more than seconds for what a job copies last."""
    monkeypatch.setattr("jobs.tracking.stored_events._LAST_COPY_S", 60.0)


@pytest.fixture
def driver(run_dir):
    """`driver(folder)`: the copies of a driver, started, and its events; stopped at the end."""
    started = []

    def begin(folder):
        folder.mkdir()
        stored = StoredEvents(run_dir, folder, EVERY_S, FakeClock())
        stored.start()
        started.append(stored)
        return stored, EventFile(folder / "tracking" / "events.jsonl")

    yield begin
    for stored in started:
        stored.close(last_copy=False)


def a_job(run_dir, error=None, step=1):
    """A job that comes to its end, or not."""
    with desk_of(run_dir, EVERY_S) as desk:
        if not isinstance(error, LeaseError):
            desk.started(plan(), 0)
        EventFile(desk.path / "tracking" / "events.jsonl").write({"step": step})
        if error:
            raise error


def steps(run_dir):
    with run_with_events(run_dir) as folder:
        return [event["step"] for event, _ in read_events(folder / "tracking" / "events.jsonl")]


def names(run_dir):
    entries = ObjectStore("s3").tree((run_dir / "tracking").path)
    return [entry.path[len(run_dir.path) + 1 :] for entry in entries]


def test_the_events_of_a_killed_driver_are_there_for_the_next_one(driver, run_dir, tmp_path):
    stored, events = driver(tmp_path / "first")
    for step in range(3):
        events.write({"step": step})
        stored.copy()
    with events.path.open("a") as file:
        file.write('{"step": 3, "half": ')  # it is killed here, in the middle of a line
    stored.copy()
    stored, events = driver(tmp_path / "second")
    events.write({"step": 4})
    stored.copy()
    assert steps(run_dir) == [0, 1, 2, 4]
    assert names(run_dir) == ["tracking/events.jsonl"]


def test_parts_of_an_earlier_release_are_read_and_taken_up_once(driver, run_dir, tmp_path):
    def put(name, *numbers):
        lines = "".join(f'{{"step": {number}}}\n' for number in numbers)
        ObjectStore("s3").write((run_dir / "tracking" / name).path, lines.encode())

    put("events.jsonl", 0, 1)
    put("parts/20260101T000000-a/events.jsonl/000000", 2, 3)
    put("parts/20260101T000000-a/events.jsonl/000001", 4)
    assert steps(run_dir) == [0, 1, 2, 3, 4]
    a_job(run_dir, step=5)
    assert steps(run_dir) == [0, 1, 2, 3, 4, 5]
    a_job(run_dir, step=6)
    assert steps(run_dir) == [0, 1, 2, 3, 4, 5, 6]


def test_the_file_is_copied_again_when_it_has_grown_by_a_tenth(driver, tmp_path, server):
    stored, events = driver(tmp_path / "first")
    server.requests.clear()
    for step in range(500):
        events.write({"step": step, "filled": "x" * 100})
        stored.copy()
    puts = [request for request in server.requests if request.method == "PUT"]
    assert 30 < len(puts) < 70, "it grows with the logarithm of the file"
    assert sum(int(put.headers["Content-Length"]) for put in puts) < 12 * events.path.stat().st_size


def test_a_store_that_is_away_costs_one_warning_and_gets_it_later(
    driver, run_dir, tmp_path, server, caplog
):
    stored, events = driver(tmp_path / "first")
    with server.with_rule(lambda request: "503"), caplog.at_level(logging.WARNING):
        for step in range(2):
            events.write({"step": step})
            stored.copy()
    (record,) = [one for one in caplog.records if one.name == "jobs.tracking.stored_events"]
    assert "not copied to the store" in record.getMessage()
    stored.copy()
    assert steps(run_dir) == [0, 1]


def test_what_could_not_be_fetched_is_not_replaced(run_dir, server):
    a_job(run_dir)
    with desk_of(run_dir, EVERY_S) as desk:
        with server.with_rule(times(9, "503", "GET", "tracking/events")):
            desk.started(plan(), 0)
        EventFile(desk.path / "tracking" / "events.jsonl").write({"step": 3})
    assert steps(run_dir) == [1]


def test_a_job_that_ends_badly_copies_what_it_has_and_one_without_the_lease_nothing(run_dir):
    with pytest.raises(LeaseError):
        a_job(run_dir, LeaseError("another driver has it"))
    assert names(run_dir) == []
    with pytest.raises(KeyboardInterrupt):
        a_job(run_dir, KeyboardInterrupt())
    a_job(run_dir, step=2)
    assert steps(run_dir) == [1, 2]


DRIVER = """
import sys, time
from live_jobs import plan, result
from jobs.run.desk import desk_of
from jobs.tracking.live import LiveRun
from pipeline.storage.urls import place

with (
    desk_of(place(sys.argv[1]), 0.2) as desk,
    LiveRun(desk.path, sys.argv[2], "evaluate", every_s=0.2) as live,
):
    desk.started(plan(), 0)
    live.started(plan(), finished=0)
    for _ in range(2):
        live.result(result())
        live.sample()
    print("sampled", flush=True)
    time.sleep(3600)
"""


@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.parametrize("next_start", ["resumed", "log-run"])
def test_mlflow_gets_the_numbers_of_a_killed_driver_whose_server_was_away(
    run_dir, mlflow_server, next_start
):
    from mlflow import MlflowClient

    with socket.socket() as nobody:
        nobody.bind(("127.0.0.1", 0))
        away = f"http://127.0.0.1:{nobody.getsockname()[1]}"
        path = os.pathsep.join([str(Path(__file__).parents[2] / "fixtures"), *sys.path])
        with subprocess.Popen(
            [sys.executable, "-c", DRIVER, str(run_dir), away],
            env={**os.environ, "PYTHONPATH": path},
            stdout=subprocess.PIPE,
            text=True,
        ) as driver:
            try:
                assert driver.stdout.readline() == "sampled\n"

                def copied():
                    with run_with_events(run_dir) as folder:
                        events = read_events(folder / "tracking" / "events.jsonl")
                        return any(e.get("metrics", {}).get("live/clips") == 2 for e, _ in events)

                until(copied, "two clips in the store")
            finally:
                driver.kill()
    uri = f"http://127.0.0.1:{mlflow_server}"
    client = MlflowClient(tracking_uri=uri)
    if next_start == "resumed":
        with desk_of(run_dir, 0.5) as desk, LiveRun(desk.path, uri, "evaluate", every_s=0.5) as on:
            desk.started(plan(), 2)
            on.started(plan(), finished=2)
            until(lambda: run_of(client, "live/clips", run_dir), "the first driver's numbers", 200)
            on.end("KILLED")
    else:
        command = [sys.executable, "-m", "jobs.cli.entry", "log-run", str(run_dir)]
        subprocess.run([*command, "--tracking-uri", uri], check=True, timeout=300)
    run = run_of(client, "live/clips", run_dir)
    assert run.info.status == "KILLED"
    assert run.data.tags["tango.run_dir"] == str(run_dir)
    assert run.data.tags["model"] == "tiny"
    values = {point.value for point in client.get_metric_history(run.info.run_id, "live/clips")}
    assert values >= {1, 2}


def run_of(client, metric, run_dir):
    """The MLflow run of a directory once it has a metric; the server has runs of other tests."""
    experiment = client.get_experiment_by_name("tango")
    runs = client.search_runs([experiment.experiment_id]) if experiment else []
    own = (run for run in runs if run.data.tags.get("tango.run_dir") == str(run_dir))
    return next((run for run in own if metric in run.data.metrics), None)
