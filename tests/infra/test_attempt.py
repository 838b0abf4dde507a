"""A RayJob is not tried again where it would end the same way: its jobs on a real Ray."""

from __future__ import annotations

import sys
import time

import pytest
from infra_files import INFRA
from ray_head import ray_head

WAIT_S = 180
pytestmark = [pytest.mark.ray, pytest.mark.slow, pytest.mark.timeout(600)]


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    """`run(shell)` gives the job of a cluster whose command that is, once it is over."""
    from ray.job_submission import JobSubmissionClient

    with ray_head(tmp_path_factory.mktemp("home")) as address:
        client = JobSubmissionClient(address)

        def run(shell):
            entrypoint = f"exec {sys.executable} {INFRA}/docker/attempt.py bash -c '{shell}'"
            job = client.submit_job(entrypoint=entrypoint)
            end = time.monotonic() + WAIT_S
            while not (status := client.get_job_status(job)).is_terminal():
                assert time.monotonic() < end, client.get_job_logs(job)
                time.sleep(0.5)
            return status.value, client.get_job_info(job).driver_exit_code, client.get_job_logs(job)

        yield run


@pytest.mark.parametrize(
    ("shell", "status"),
    [
        ("exit 0", "SUCCEEDED"),
        ("echo tango: 3 clips failed; exit 1", "STOPPED"),
        ("echo tango: unknown method; exit 2", "STOPPED"),
        ("exit 143", "FAILED"),
        ("kill -KILL $$", "FAILED"),
    ],
)
def test_only_what_another_cluster_may_change_counts_as_failed(run, shell, status):
    found, _, log = run(shell)
    assert found == status, log
    assert ("this job is stopped, not retried" in log) == (status == "STOPPED")


def test_the_exit_code_of_a_failure_is_that_of_the_command(run):
    assert run("exit 143")[1] == 143
    assert run("kill -KILL $$")[1] == 137
