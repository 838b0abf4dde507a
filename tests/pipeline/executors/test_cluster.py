"""What is decided before Ray starts; that it starts is for the tests that use it."""

from __future__ import annotations

import pytest
from fresh_python import printed_by


@pytest.mark.parametrize(("user", "expected"), [(None, "False"), ("1", "True")])
def test_ray_reports_no_usage_unless_the_user_asks(user, expected, monkeypatch):
    """A refused address is enough: the setting is made before anything is asked of Ray."""
    monkeypatch.delenv("RAY_USAGE_STATS_ENABLED", raising=False)
    if user is not None:
        monkeypatch.setenv("RAY_USAGE_STATS_ENABLED", user)
    code = (
        "import contextlib, ray\n"
        "from ray._common.usage.usage_lib import usage_stats_enabled\n"
        "from pipeline.errors import ClusterError\n"
        "from pipeline.executors.cluster import connected\n"
        "with contextlib.suppress(ClusterError), connected('127.0.0.1:1'):\n"
        "    raise SystemExit('port 1 answers')\n"
        "print(usage_stats_enabled())"
    )
    assert printed_by(code) == expected


@pytest.mark.ray
def test_what_ray_says_of_a_cluster_does_not_mix_with_our_output():
    """As when a node is lost; what it would print comes from a thread of its own, soon."""
    code = (
        "import ray, time\n"
        "from ray._private.utils import publish_error_to_driver\n"
        "from pipeline.executors.cluster import connected\n"
        "with connected():\n"
        "    client = ray._private.worker.global_worker.gcs_client\n"
        "    publish_error_to_driver('node_died', 'a raylet has died', client)\n"
        "    time.sleep(3)\n"
        "    print('our own line')"
    )
    assert printed_by(code) == "our own line"


@pytest.mark.ray
def test_a_thread_that_outlives_the_job_starts_no_other_ray():
    code = (
        "import ray\n"
        "from pipeline.executors.cluster import connected\n"
        "with connected():\n"
        "    assert ray.is_initialized()\n"
        "try:\n"
        "    ray.put(1)\n"
        "except Exception as error:\n"
        "    print(type(error).__name__, ray.is_initialized())"
    )
    assert printed_by(code) == "RaySystemError False"
