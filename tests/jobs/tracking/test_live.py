"""Jobs in MLflow while they are at work: real servers and stores, real kills."""

from __future__ import annotations

import json
import logging
import os
import socket
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
from live_jobs import RECIPE, finish, new_run, plan, result
from waiting import until

from jobs.tracking.live import _END_WITHIN_S, LiveRun, RunningNumbers
from jobs.tracking.runs import log_run
from pipeline.metrics import JobBoard, StageCount
from pipeline.storage.leases import LeaseError
from tango_core.metrics import clustered_accuracy

pytestmark = pytest.mark.timeout(600)


@pytest.fixture
def run_dir(tmp_path):
    return new_run(tmp_path / "run")


@pytest.fixture
def hanging():
    """Address of a server that accepts connections and never answers."""
    with socket.create_server(("127.0.0.1", 0)) as silent:
        yield f"http://127.0.0.1:{silent.getsockname()[1]}"


def run_of(client, name="run"):
    """The MLflow run of a run directory, or `None`."""
    experiment = client.get_experiment_by_name("tango")
    if experiment is None:
        return None
    query = f"tags.`tango.run_id` = '{name}'"
    return next(iter(client.search_runs([experiment.experiment_id], query)), None)


def shown(client, metric, name="run"):
    """The MLflow run once it has a metric."""
    run = run_of(client, name)
    return run if run and metric in run.data.metrics else None


def test_a_job_is_running_with_its_numbers_and_then_finished(run_dir, store, client):
    with LiveRun(run_dir, RECIPE, store, "evaluate", every_s=0.5) as live:
        live.started(plan(), finished=2)
        live.result(result())
        running = until(lambda: shown(client, "live/clips"), "a metric")
        assert running.info.status == "RUNNING"
        assert running.data.tags["num_clips"] == "5"
        live.result(result(False))
        live.stopped()
        finish(run_dir)
        mlflow_id = live.finish(run_dir)
    assert mlflow_id == running.info.run_id
    finished = client.get_run(mlflow_id)
    assert finished.info.status == "FINISHED"
    assert finished.data.metrics["live/clips"] == 2
    steps = [point.step for point in client.get_metric_history(mlflow_id, "live/clips")]
    assert max(steps) == 4, "two clips were finished by an earlier attempt"
    accuracy = json.loads((run_dir / "summary.json").read_text())["accuracy"]
    assert finished.data.metrics["accuracy"] == pytest.approx(accuracy, abs=1e-4)


def break_off(run_dir, store, client, error):
    """A job that raises once its metrics are in MLflow."""
    with LiveRun(run_dir, RECIPE, store, "sweep", every_s=0.5) as live:
        live.started(plan(), finished=0)
        until(lambda: shown(client, "live/clips"), "a metric")
        raise error


@pytest.mark.parametrize(
    ("error", "status"), [(ValueError("no GPU"), "FAILED"), (KeyboardInterrupt(), "KILLED")]
)
def test_a_job_that_breaks_off_says_how(run_dir, store, client, monkeypatch, error, status):
    monkeypatch.setitem(_END_WITHIN_S, status, 60.0)  # a busy machine is slow
    with pytest.raises(type(error)):
        break_off(run_dir, store, client, error)
    run = run_of(client)
    assert run.info.status == status
    assert run.data.tags["ended"] == (str(error) or type(error).__name__)


def test_a_hanging_server_costs_one_line_and_is_made_up_for(
    run_dir, store, client, hanging, caplog
):
    with LiveRun(run_dir, RECIPE, hanging, "evaluate", every_s=0.2) as live:
        live.started(plan(), finished=0)
        for _ in range(3):
            live.result(result())
            live.sample()
        live.stopped()
        finish(run_dir)
        with caplog.at_level(logging.WARNING):
            assert live.finish(run_dir, idle_s=4) is None
    (record,) = caplog.records
    assert "no progress for 4 s" in record.getMessage()
    assert f"tango log-run {run_dir} --tracking-uri {hanging}" in record.getMessage()
    assert "\n" not in record.getMessage()
    log_run(run_dir, store)
    run = run_of(client)
    assert (run.info.status, "accuracy" in run.data.metrics) == ("FINISHED", True)


def test_a_store_that_comes_back_gets_what_it_missed(run_dir, store, client, monkeypatch):
    from mlflow import MlflowClient

    log_batch, refused = MlflowClient.log_batch, []

    def refuse_twice(*given, **options):
        if len(refused) < 2:
            refused.append(options)
            raise ConnectionResetError("connection lost")
        return log_batch(*given, **options)

    monkeypatch.setattr(MlflowClient, "log_batch", refuse_twice)
    with LiveRun(run_dir, RECIPE, store, "evaluate", every_s=0.2) as live:
        live.started(plan(), finished=0)
        for _ in range(3):
            live.result(result())
            live.sample()
        until(lambda: shown(client, "live/clips"), "what was missed")
        live.stopped()
        finish(run_dir)
        run = live.finish(run_dir)
    assert len(refused) == 2
    history = client.get_metric_history(run, "live/clips")
    assert {point.value for point in history} >= {1, 2, 3}
    assert client.get_run(run).info.status == "FINISHED"


def board_of(slots=1.0, **stages):
    board = JobBoard()
    board.expected = {"decode": 10, "answer": 12}
    board.slots = {"decode": slots}
    board.add({name: StageCount(*counts) for name, counts in stages.items()})
    return board


def test_accuracy_so_far_has_the_interval_of_the_results():
    numbers = RunningNumbers(JobBoard())
    outcomes = [True, False, True, True, True, False]
    for right in outcomes:
        numbers.add(result(right), num_caches=1)
    metrics = numbers.metrics(2.0)
    whole = clustered_accuracy(outcomes, range(6))
    assert metrics["accuracy"] == metrics["live/accuracy"] == pytest.approx(whole.value)
    assert metrics["live/accuracy_low"] == pytest.approx(whole.low)
    assert metrics["live/accuracy_high"] == pytest.approx(whole.high)
    assert next(iter(metrics)) == "accuracy", "the UI lists metrics in this order"


def test_rates_are_those_since_the_last_sample():
    numbers = RunningNumbers(JobBoard())
    for _ in range(4):
        numbers.add(result(), num_caches=1)
    assert numbers.metrics(2.0)["live/clips_per_s"] == 2
    numbers.add(result(), num_caches=1)
    later = numbers.metrics(6.0)
    assert (later["live/clips"], later["live/clips_per_s"]) == (5, 0.25)
    assert later["live/tokens_per_s"] == 100 / 4


def test_failures_are_counted_by_reason_and_are_wrong():
    numbers = RunningNumbers(JobBoard())
    lost = result(False, status="decode_failed")
    unanswered = result()
    unanswered.answers[0] = replace(unanswered.answers[0], status="answer_failed")
    for row in (lost, lost, unanswered, result()):
        numbers.add(row, num_caches=2)
    metrics = numbers.metrics(1.0)
    assert metrics["failures/decode_failed"] == 2
    assert metrics["failures/answer_failed"] == 1
    assert metrics["live/failed_clips"] == 3
    assert metrics["accuracy"] == 0.25
    assert metrics["live/cache_hits"] == 2


def test_stages_have_queues_and_busy_shares():
    numbers = RunningNumbers(board_of(decode=(7, 6, 1, 3.0), answer=(1, 0, 0, 0.0)))
    metrics = numbers.metrics(4.0)
    assert metrics["stage_clips/decode"] == 6
    assert metrics["queue/decode"] == 3, "of ten, seven were taken"
    assert metrics["queue/answer"] == 7, "six were decoded, two are cached, one was taken"
    assert metrics["busy_share/decode"] == 0.75
    assert metrics["busy_share/answer"] == 1, "it is at work on its first clip"
    assert numbers.metrics(8.0)["busy_share/decode"] == 1, "one clip is under way"
    shared = RunningNumbers(board_of(slots=4.0, decode=(6, 6, 0, 8.0)))
    assert shared.metrics(4.0)["busy_share/decode"] == 0.5, "many workers share the work"


def test_a_driver_whose_run_was_taken_leaves_it_alone(run_dir, store, client):
    with pytest.raises(LeaseError):
        break_off(run_dir, store, client, LeaseError("taken over"))
    assert run_of(client).info.status == "RUNNING"


DRIVER = """
import sys, time
from pathlib import Path
from live_jobs import RECIPE, plan, result
from jobs.tracking.live import LiveRun

with LiveRun(Path(sys.argv[1]), RECIPE, sys.argv[2], "evaluate", every_s=0.5) as live:
    live.started(plan(), finished=0)
    live.result(result())
    print("started", flush=True)
    if sys.argv[3] == "waits":
        time.sleep(3600)
    time.sleep(1)
    live.finish(Path(sys.argv[1]), idle_s=4)
"""


@pytest.fixture
def driver():
    """`driver(run_dir, uri, ends)` starts a process that drives a job, and waits or finishes."""
    started = []

    def start(run_dir, uri, ends="waits"):
        path = os.pathsep.join([str(Path(__file__).parents[2] / "fixtures"), *sys.path])
        process = subprocess.Popen(
            [sys.executable, "-c", DRIVER, str(run_dir), uri, ends],
            env={**os.environ, "PYTHONPATH": path},
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        started.append(process)
        assert process.stdout.readline() == "started\n"
        return process

    yield start
    for one in started:
        one.kill()
        one.communicate()


@pytest.mark.slow
def test_the_run_of_a_killed_driver_is_marked_at_the_next_start(
    run_dir, store, client, driver, tmp_path
):
    process = driver(run_dir, store)
    killed = until(lambda: shown(client, "live/clips"), "a metric")
    process.kill()
    process.wait()
    assert client.get_run(killed.info.run_id).info.status == "RUNNING", "nobody could say so"
    other = new_run(tmp_path / "other")
    with LiveRun(other, RECIPE, store, "evaluate", every_s=0.5) as live:
        live.started(plan(), finished=0)
        until(lambda: client.get_run(killed.info.run_id).info.status == "KILLED", "the mark")
        assert run_of(client, "other").info.status == "RUNNING"
        live.end("KILLED")


@pytest.mark.slow
def test_a_process_ends_in_order_while_a_server_hangs(run_dir, hanging, driver):
    process = driver(run_dir, hanging, "finishes")
    _, errors = process.communicate(timeout=200)
    assert process.returncode == 0, errors
    (line,) = errors.splitlines()
    assert "no progress for 4 s" in line
