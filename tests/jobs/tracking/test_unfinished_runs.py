"""MLflow runs of jobs without results, and of killed drivers."""

from __future__ import annotations

import json
import math
import shutil

import pytest
import yaml
from fake_clock import FakeClock
from live_jobs import RECIPE, finish, new_run

from jobs.tracking.runs import (
    DIED,
    DIRECTORY_TAG,
    MlflowRuns,
    TrackingError,
    log_run,
    without_secrets,
)
from pipeline.storage import Storage
from pipeline.storage.leases import EXPIRES_S, Lease

SECRET = "s3cr3t"


@pytest.fixture
def run_dir(tmp_path):
    return new_run(tmp_path / "run")


def begin(run_dir, store, recipe=RECIPE):
    """Start the MLflow run of a job; returns its id."""
    return MlflowRuns.connect(store, run_dir).begin(recipe, "evaluate", 9)


def test_a_started_job_is_running_with_its_settings(run_dir, store, client):
    run = client.get_run(begin(run_dir, store))
    assert (run.info.status, run.info.run_name) == ("RUNNING", "run")
    assert run.data.params["method.retention"] == "0.1"
    assert run.data.tags["model"] == "tiny"


def test_a_resumed_job_runs_again_and_may_be_finished(run_dir, store, client):
    run = begin(run_dir, store)
    MlflowRuns.connect(store, run_dir).end(run, "FAILED", 9000, "a reason")
    ended = client.get_run(run)
    assert (ended.info.status, ended.info.end_time) == ("FAILED", 9000)
    assert ended.data.tags["ended"] == "a reason"
    assert log_run(run_dir, store) == run
    assert client.get_run(run).info.status == "FAILED", "its driver recorded the end"
    assert begin(run_dir, store) == run
    again = client.get_run(run)
    assert (again.info.status, "ended" in again.data.tags) == ("RUNNING", False)
    finish(run_dir)
    assert log_run(run_dir, store) == run
    assert client.get_run(run).info.status == "FINISHED"


def test_passwords_in_urls_are_not_sent(tmp_path, store, client):
    bucket = f"s3://key:{SECRET}@bucket/videos"
    recipe = {**RECIPE, "benchmark": {**RECIPE["benchmark"], "root": bucket}}
    run_dir = new_run(tmp_path / "run", recipe)
    run = begin(run_dir, store, recipe)
    MlflowRuns.connect(store, run_dir).end(run, "FAILED", None, f"cannot read {bucket}")
    finish(run_dir)
    assert log_run(run_dir, store) == run
    assert client.get_run(run).data.params["benchmark.root"] == "s3://***@bucket/videos"
    for path in tmp_path.rglob("*"):
        if path.is_file() and path != run_dir / "job.yaml":
            assert SECRET.encode() not in path.read_bytes(), path
    with pytest.raises(TrackingError) as error:
        log_run(run_dir, f"foo://me:{SECRET}@host")
    assert SECRET not in str(error.value)


def test_directories_of_the_same_name_have_two_runs(tmp_path, store):
    dirs = [new_run(tmp_path / folder / "run") for folder in ("0", "1")]
    first, second, *again = [begin(run_dir, store) for run_dir in dirs * 2]
    assert first != second
    assert again == [first, second]


def test_a_moved_directory_keeps_its_run(tmp_path, store):
    before = new_run(tmp_path / "before" / "run")
    found = begin(before, store)
    after = new_run(tmp_path / "after" / "run")
    shutil.rmtree(before)
    assert begin(after, store) == found


def test_a_run_unknown_to_mlflow_has_nothing_to_upload(run_dir, store):
    with pytest.raises(FileNotFoundError, match="has no results yet"):
        log_run(run_dir, store)


def test_runs_of_dead_drivers_are_ended_at_the_next_start(store, client, tmp_path):
    own, killed, complete, living = (
        new_run(tmp_path / name) for name in ("own", "killed", "complete", "living")
    )
    finish(complete)
    Lease(Storage.at(living)).take()
    found = {run_dir: begin(run_dir, store) for run_dir in (own, killed, complete, living)}
    experiment = client.get_run(found[own]).info.experiment_id
    far = client.create_run(experiment, tags={DIRECTORY_TAG: "/on/another/machine"}).info.run_id
    foreign = client.create_run(experiment).info.run_id
    MlflowRuns.connect(store, own).end_dead_runs()
    expected = {
        found[own]: "RUNNING",
        found[killed]: "KILLED",
        found[complete]: "FINISHED",
        found[living]: "RUNNING",
        far: "RUNNING",
        foreign: "RUNNING",
    }
    assert {run: client.get_run(run).info.status for run in expected} == expected
    assert client.get_run(found[killed]).data.tags["ended"] == DIED


def test_log_run_marks_a_killed_run_once_its_lease_has_expired(run_dir, store, client):
    run = begin(run_dir, store)
    Lease(Storage.at(run_dir), FakeClock()).take()
    for clock, status in ((FakeClock(), "RUNNING"), (FakeClock(EXPIRES_S + 1), "KILLED")):
        assert log_run(run_dir, store, clock=clock) == run
        assert client.get_run(run).info.status == status


NUMBER, WORDS, ESCAPED = "20240917", "very-secret-word", 'say "hé\\llo"'


@pytest.fixture(autouse=True)
def secrets(monkeypatch):
    monkeypatch.setenv("NUMBER_TOKEN", NUMBER)
    monkeypatch.setenv("WORDS_PASSWORD", WORDS)
    monkeypatch.setenv("ESCAPED_SECRET", ESCAPED)


HELD = {
    "limit": int(NUMBER),
    "share": float(f"0.{NUMBER}"),
    "failures": {'cannot open "https://host/a?token=abc": 403\nend': 2},
    WORDS: [WORDS, f"x{NUMBER}", None, True, 1.0],
    "why": f"wrong: {ESCAPED}",
    "root": "s3://key:pass@bucket/videos",
    "nan": math.nan,
}
CLEAN = {
    **{key: HELD[key] for key in ("limit", "share")},
    "failures": {'cannot open "https://host/a?token=***": 403\nend': 2},
    "***": ["***", "x***", None, True, 1.0],
    "why": "wrong: ***",
    "root": "s3://***@bucket/videos",
    "nan": "nan",
}


def shown(held):
    return {**held, "nan": str(held["nan"])}


def test_json_and_yaml_stay_what_they_are_with_their_numbers(tmp_path):
    path = tmp_path / "summary.json"
    path.write_text(json.dumps(HELD))
    assert shown(json.loads(without_secrets(path))) == CLEAN
    path = tmp_path / "job.yaml"
    path.write_text(f"# {WORDS}.yaml\n{yaml.safe_dump(HELD, sort_keys=False)}")
    clean = without_secrets(path)
    assert WORDS not in clean
    assert shown(yaml.safe_load(clean)) == CLEAN


@pytest.mark.parametrize(
    ("name", "text", "clean"),
    [
        ("facts.json", f'{{"a": {NUMBER}, "b":    NaN}}', None),
        ("job.yaml", "# a\na:   1  # b\nb: .nan\n", None),
        ("job.yaml", f"# {WORDS}\n# b\na:   1  # as written\n", "a: 1\n"),
        ("a.png", WORDS, None),
        ("cut.json", f'{{"a": "{WORDS}", ', '{"a": "***", '),
        ("page.html", f"<p>{WORDS} {NUMBER}", "<p>*** ***"),
    ],
)
def test_everything_else_is_redacted_as_text(tmp_path, name, text, clean):
    (tmp_path / name).write_text(text)
    assert without_secrets(tmp_path / name) == clean
