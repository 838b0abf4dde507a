"""How a job of a store ends, well, badly or killed, and who says so: real servers, real kills."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
from kept_spools import a_job, names, steps
from live_jobs import plan, until

from jobs.run.desk import desk_of
from jobs.tracking.drivers import DIRECTORY_TAG, DRIVER_TAG, HEARTBEAT_TAG, Driver
from jobs.tracking.live import LiveRun
from jobs.tracking.parts import spool_at_hand
from jobs.tracking.repair import repair
from jobs.tracking.spool import Sent, read_events
from pipeline.lease import LeaseError
from pipeline.remote.objects import ObjectStore
from pipeline.remote.urls import Url


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
        path = os.pathsep.join([str(Path(__file__).parents[3] / "fixtures"), *sys.path])
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
