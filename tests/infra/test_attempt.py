"""The retry wrapper of RayJobs, on a real Ray: only failures of the cluster are retried."""

from __future__ import annotations

import sys

import psutil
import pytest
from documented import INFRA
from ray_head import ray_cluster
from waiting import until

WAIT_S = 180
pytestmark = [pytest.mark.ray, pytest.mark.slow, pytest.mark.timeout(600)]


@pytest.fixture(scope="module")
def cluster(tmp_path_factory):
    """Its addresses for clients and for drivers."""
    with ray_cluster(tmp_path_factory.mktemp("home")) as addresses:
        yield addresses


@pytest.fixture
def run(cluster):
    """`run(shell)` gives the job whose command that is, once it is over: status, exit code, log."""
    from ray.job_submission import JobSubmissionClient

    client = JobSubmissionClient(cluster[0])

    def run(shell):
        entrypoint = f"exec {sys.executable} {INFRA}/docker/attempt.py bash -c '{shell}'"
        job = client.submit_job(entrypoint=entrypoint)
        until(lambda: client.get_job_status(job).is_terminal(), job, WAIT_S)
        status = client.get_job_status(job)
        return status.value, client.get_job_info(job).driver_exit_code, client.get_job_logs(job)

    return run


@pytest.mark.parametrize(
    ("shell", "status", "code"),
    [
        ("exit 0", "SUCCEEDED", None),
        ("echo tango: 3 clips failed; exit 1", "STOPPED", None),
        ("echo tango: unknown method; exit 2", "STOPPED", None),
        ("exit 143", "FAILED", 143),
        ("kill -KILL $$", "FAILED", 137),
    ],
)
def test_only_failures_of_the_cluster_count_as_failed(run, shell, status, code):
    found, exit_code, log = run(shell)
    assert found == status, log
    assert ("this job is stopped, not retried" in log) == (status == "STOPPED")
    if code is not None:
        assert exit_code == code


def test_a_lost_node_counts_as_failed(cluster, run):
    """The last test here: the cluster has one node less afterwards."""
    from ray.util.state import list_nodes

    url, drivers = cluster
    for process in psutil.process_iter(["name", "cmdline"]):
        line = " ".join(process.info["cmdline"] or ())
        if process.info["name"] == "raylet" and drivers in line and "/sockets/raylet.1 " in line:
            process.kill()
    until(lambda: any(node.state != "ALIVE" for node in list_nodes(address=url)), "a loss", WAIT_S)
    assert run("exit 2")[:2] == ("FAILED", 2)
