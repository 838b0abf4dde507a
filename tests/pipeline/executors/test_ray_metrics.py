"""What the stages report on Ray: to the driver, and on the page that Prometheus reads."""

from __future__ import annotations

import re
import time
import urllib.request

import pytest
from jobs_for_tests import job, plan_of

from pipeline.metrics import METRICS, JobBoard
from pipeline.run import run
from pipeline.settings import Settings

pytestmark = pytest.mark.ray


def page():
    """What Prometheus would read of this node."""
    import ray

    (node,) = ray.nodes()
    address = f"http://127.0.0.1:{node['MetricsExportPort']}/metrics"
    try:
        with urllib.request.urlopen(address, timeout=10) as reply:
            return reply.read().decode()
    except OSError:
        return ""


def names_in(text):
    """Names of the metrics that have a value on a page."""
    lines = (line for line in text.splitlines() if line and not line.startswith("#"))
    return {re.split(r"[{ ]", line)[0] for line in lines}


@pytest.mark.slow
def test_driver_and_prometheus_see_every_stage(tmp_path, local_ray):
    plan = plan_of(job(tmp_path / "shapes", limit=3), tmp_path / "cache")
    board = JobBoard()
    job_under_way = run(plan, Settings("ray"), board=board)
    for _ in range(3):
        next(job_under_way)
    # Ray forgets the sizes of a job within seconds after its end.
    wanted = {name for metric in METRICS for name in metric.exported}
    deadline = time.monotonic() + 120
    while missing := wanted - names_in(page()):
        assert time.monotonic() < deadline, missing
        time.sleep(1)
    assert list(job_under_way) == []
    assert {stage: count.finished for stage, count in board.counts().items()} == {
        "decode": 3,
        "compress": 3,
        "answer": 3,
    }
    assert all(count.busy_s > 0 for count in board.counts().values())
    assert board.slots["compress"] == board.slots["answer"] == 1 <= board.slots["decode"]
