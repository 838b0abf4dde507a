"""The spool of a run in a store outlives its driver: a real S3 server, real kills."""

from __future__ import annotations

import json
import logging
import os
import signal
import socket
import subprocess
import sys
import threading
from dataclasses import replace
from pathlib import Path

import pytest
import yaml
from fake_clock import FakeClock
from live_jobs import RECIPE, plan, until
from s3_server import new_bucket, s3_of_this_process, times

from jobs.run.desk import desk_of
from jobs.tracking.drivers import DIRECTORY_TAG, DRIVER_TAG, HEARTBEAT_TAG, Driver
from jobs.tracking.kept import KeptSpool
from jobs.tracking.live import LiveRun
from jobs.tracking.parts import PART_BYTES, spool_at_hand
from jobs.tracking.repair import repair
from jobs.tracking.spool import Sent, Spool, read_events
from pipeline.lease import LeaseError
from pipeline.remote.objects import ObjectStore
from pipeline.remote.urls import Url

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


def names(run_dir):
    """What is in the store of the spool."""
    start = len(run_dir.path) + 1
    return [entry.path[start:] for entry in ObjectStore("s3").tree((run_dir / "tracking").path)]


@pytest.fixture(autouse=True)
def patient(monkeypatch):
    """A busy machine has more than seconds for what a job sends last."""
    monkeypatch.setattr("jobs.tracking.kept._LAST_SEND_S", 60.0)


@pytest.fixture
def kept_at(run_dir):
    """`kept_at(desk)`: a driver's copy of the spool, started; it is stopped when the test ends."""
    started = []

    def begin(desk, clock=None):
        desk.mkdir()
        kept = KeptSpool(run_dir, desk, EVERY_S, clock or FakeClock())
        kept.start()
        started.append(kept)
        return kept, Spool(desk / "tracking" / "events.jsonl")

    yield begin
    for kept in started:
        kept._ticker.stop()


def steps(desk):
    return [event["step"] for event, _ in read_events(desk / "tracking" / "events.jsonl")]


def test_what_a_killed_driver_said_is_there_for_the_next_one(kept_at, run_dir, tmp_path):
    kept, spool = kept_at(tmp_path / "first")
    for step in range(3):
        spool.write({"step": step})
        kept.send()
    sent = Sent.load(tmp_path / "first", "http://one")
    sent.run, sent.offsets = "abc", {"events.jsonl": 7}
    sent.save()
    kept.send()
    with spool.path.open("a") as file:
        file.write('{"step": 3')  # it is killed here, in the middle of a line
    kept.send()
    kept, spool = kept_at(tmp_path / "second")
    assert steps(tmp_path / "second") == [0, 1, 2]
    assert Sent.load(tmp_path / "second", "http://one").offsets == {"events.jsonl": 7}
    spool.write({"step": 4})
    kept.send()
    spool.write({"step": 5})
    kept.send()
    with spool_at_hand(run_dir) as third:
        assert steps(third) == [0, 1, 2, 4, 5]
    whole, sent_json, part = sorted(names(run_dir), key=len)
    assert (whole, sent_json) == ("tracking/sent.json", "tracking/events.jsonl")
    assert part.endswith("/events.jsonl/000000"), "the parts of the first attempt are gone"


def test_offsets_are_never_ahead_of_the_bytes_that_are_kept(kept_at, run_dir, tmp_path, server):
    kept, spool = kept_at(tmp_path / "first")
    spool.write({"step": 1})
    sent = Sent.load(tmp_path / "first", "http://one")
    sent.offsets = {"events.jsonl": spool.path.stat().st_size}
    sent.save()
    with server.with_rule(times(9, "503", "PUT", "parts")):
        kept.send()
    with spool_at_hand(run_dir) as there:
        assert Sent.load(there, "http://one").offsets == {}
    kept.send()
    with spool_at_hand(run_dir) as there:
        assert Sent.load(there, "http://one").offsets == sent.offsets
        assert steps(there) == [1]


def test_objects_and_bytes_are_bounded(kept_at, run_dir, tmp_path, server):
    kept, spool = kept_at(tmp_path / "desk")
    server.requests.clear()
    lines, size = 120, PART_BYTES // 20
    for step in range(lines):
        spool.write({"step": step, "filled": "x" * size})
        kept.send()
    assert len(names(run_dir)) <= lines * (size + 50) / PART_BYTES + 1
    puts = [request for request in server.requests if request.method == "PUT"]
    assert len(puts) <= lines + len(names(run_dir))
    assert max(int(request.headers["Content-Length"]) for request in puts) < 1.2 * PART_BYTES
    with spool_at_hand(run_dir) as there:
        assert steps(there) == list(range(lines))


def test_requests_become_rare_as_a_job_grows_old(kept_at, run_dir, tmp_path, server, monkeypatch):
    monkeypatch.setattr("jobs.tracking.kept._MOST_AT_FULL_RATE", 20)
    clock = FakeClock()
    kept, spool = kept_at(tmp_path / "desk", clock)
    server.requests.clear()
    for hour in range(7 * 24):
        for _ in range(12):
            spool.write({"step": hour})
            clock.sleep(300.0)
            kept._tick()
    assert 80 < server.counts()["PUT"] < 200, "it grows with the logarithm of the time"


def test_a_store_that_is_away_costs_one_warning_and_gets_it_later(
    kept_at, run_dir, tmp_path, server, caplog
):
    with server.with_rule(lambda request: "503"), caplog.at_level(logging.WARNING):
        kept, spool = kept_at(tmp_path / "desk")
        for step in range(2):
            spool.write({"step": step})
            kept.send()
    (record,) = [one for one in caplog.records if one.name == "jobs.tracking.kept"]
    assert "not kept in the store" in record.getMessage()
    kept.send()
    with spool_at_hand(run_dir) as there:
        assert steps(there) == [0, 1]


def test_what_could_not_be_brought_here_is_not_replaced(run_dir, tmp_path, server, kept_at):
    kept, spool = kept_at(tmp_path / "first")
    for step in range(2):
        spool.write({"step": step})
        kept.send()
    a_job(run_dir)  # its whole file is there now
    kept, spool = kept_at(tmp_path / "killed")
    spool.write({"step": 2})
    kept.send()
    before = names(run_dir)
    with desk_of(run_dir, EVERY_S) as desk:
        with server.with_rule(times(9, "503", "GET", "tracking/events")):
            desk.started(plan(), 0)
        Spool(desk.path / "tracking" / "events.jsonl").write({"step": 3})
    assert set(before) < set(names(run_dir))
    with spool_at_hand(run_dir) as there:
        assert sorted(steps(there)) == [0, 1, 1, 2, 3]


def test_a_copy_under_way_comes_before_the_whole_files(run_dir, tmp_path, server, kept_at):
    kept, spool = kept_at(tmp_path / "killed")
    spool.write({"step": 0})
    kept.send()
    under_way, go_on = threading.Event(), threading.Event()

    def slowly(request):
        whole = request.method == "PUT" and request.path.endswith("tracking/events.jsonl")
        if whole and not under_way.is_set():
            under_way.set()
            go_on.wait(60)

    with server.with_rule(slowly), desk_of(run_dir, EVERY_S) as desk:
        desk.started(plan(), 0)
        Spool(desk.path / "tracking" / "events.jsonl").write({"step": 1})
        sender = threading.Thread(target=desk._kept.send)
        sender.start()
        assert under_way.wait(60)
        threading.Timer(1.0, go_on.set).start()
    sender.join()
    assert names(run_dir) == ["tracking/events.jsonl"]
    with spool_at_hand(run_dir) as there:
        assert steps(there) == [0, 1]


def a_job(run_dir, error=None):
    """A job that comes to its end, or not."""
    with desk_of(run_dir, EVERY_S) as desk:
        if not isinstance(error, LeaseError):
            desk.started(plan(), 0)
        Spool(desk.path / "tracking" / "events.jsonl").write({"step": 1})
        if error:
            raise error


def test_a_job_that_ends_badly_sends_what_it_has_and_one_without_the_lease_nothing(run_dir):
    with pytest.raises(LeaseError):
        a_job(run_dir, LeaseError("another driver has it"))
    assert names(run_dir) == []
    with pytest.raises(KeyboardInterrupt):
        a_job(run_dir, KeyboardInterrupt())
    with spool_at_hand(run_dir) as there:
        assert steps(there) == [1]


def test_a_job_that_ends_well_leaves_whole_files(run_dir):
    with pytest.raises(ValueError, match="no GPU"):
        a_job(run_dir, ValueError("no GPU"))
    a_job(run_dir)
    assert names(run_dir) == ["tracking/events.jsonl"]
    with spool_at_hand(run_dir) as there:
        assert steps(there) == [1, 1]


@pytest.mark.parametrize("there", [True, False])
def test_another_job_ends_the_run_of_a_driver_that_died_elsewhere(
    kept_at, run_dir, tmp_path, client, there
):
    dead = replace(Driver.this(), machine="another", host="far")
    kept, spool = kept_at(tmp_path / "desk")
    spool.write({"kind": "start", "time": 1, "driver": dead.to_tag(), "directory": str(run_dir)})
    spool.write({"kind": "sample", "time": 2, "step": 4, "metrics": {"live/clips": 4}})
    kept.send()
    where = run_dir if there else Url(f"s3://not-{run_dir.path}")
    tags = {DRIVER_TAG: dead.to_tag(), HEARTBEAT_TAG: "2020-01-01T00:00:00+00:00"}
    tags |= {DIRECTORY_TAG: str(where), "tango.run_id": "run"}
    experiment = client.create_experiment("tango")
    run = client.create_run(experiment, start_time=1, tags=tags).info.run_id
    assert repair(client, experiment, "sqlite://") == [run]
    found = client.get_run(run)
    assert found.info.status == "KILLED"
    assert found.data.metrics == ({"live/clips": 4} if there else {})


DRIVER = """
import sys, time
from live_jobs import plan, result
from jobs.run.desk import desk_of
from jobs.tracking.live import LiveRun
from pipeline.remote.urls import place

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
def test_mlflow_hears_of_a_killed_driver_whose_server_was_away(
    run_dir, mlflow_server, tmp_path, next_start
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

                def kept():
                    with spool_at_hand(run_dir) as there:
                        events = read_events(there / "tracking" / "events.jsonl")
                        return any(e.get("metrics", {}).get("live/clips") == 2 for e, _ in events)

                until(kept, "two clips in the store")
            finally:
                driver.send_signal(signal.SIGKILL)
    uri = f"http://127.0.0.1:{mlflow_server}"
    client = MlflowClient(tracking_uri=uri)
    if next_start == "resumed":
        with desk_of(run_dir, 0.5) as desk, LiveRun(desk.path, uri, "evaluate", every_s=0.5) as on:
            desk.started(plan(), 2)
            on.started(plan(), finished=2)
            until(lambda: run_of(client, "live/clips", run_dir), "what the first driver said", 200)
            on.end("KILLED")
    else:
        with spool_at_hand(run_dir) as there:
            assert not Sent.load(there, uri).run, "the server had not heard of it"
        command = [sys.executable, "-m", "jobs.cli.entry", "log-run", str(run_dir)]
        subprocess.run([*command, "--tracking-uri", uri], check=True, timeout=300)
    run = run_of(client, "live/clips", run_dir)
    assert run.data.tags["tango.run_dir"] == str(run_dir)
    assert run.data.tags["model"] == "tiny"
    values = {point.value for point in client.get_metric_history(run.info.run_id, "live/clips")}
    assert values >= {1, 2}
    if next_start != "resumed":
        assert run.info.status == "KILLED"
        assert "tracking/sent.json" in names(run_dir)
        assert json.loads(ObjectStore("s3").read((run_dir / "tracking/sent.json").path))


def run_of(client, metric, run_dir):
    """The MLflow run of a directory once it has a metric; the server has runs of other tests."""
    experiment = client.get_experiment_by_name("tango")
    runs = client.search_runs([experiment.experiment_id]) if experiment else []
    own = (run for run in runs if run.data.tags.get("tango.run_dir") == str(run_dir))
    return next((run for run in own if metric in run.data.metrics), None)
