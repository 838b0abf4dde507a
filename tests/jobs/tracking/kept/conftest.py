"""A run in a real S3 store, and drivers that keep their spools there."""

from __future__ import annotations

import pytest
import yaml
from fake_clock import FakeClock
from kept_spools import EVERY_S
from live_jobs import RECIPE
from s3_server import new_bucket, s3_of_this_process

from jobs.tracking.kept import KeptSpool
from jobs.tracking.spool import Spool
from pipeline.remote.objects import ObjectStore
from pipeline.remote.urls import Url


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
