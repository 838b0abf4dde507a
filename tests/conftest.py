"""Fixtures for the whole suite."""

from __future__ import annotations

import os

import pytest

# Before anything imports these libraries: no telemetry, no authentication, no hub.
os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
os.environ.setdefault("RAY_AUTH_MODE", "disabled")
os.environ.setdefault("MLFLOW_DISABLE_TELEMETRY", "true")
os.environ.setdefault("HF_HUB_OFFLINE", "1")


@pytest.fixture(scope="session")
def local_ray():
    """One Ray for the session, with more logical CPUs than a small machine has."""
    import ray

    ray.init(
        address="local",
        num_cpus=4,
        object_store_memory=256 * 2**20,
        include_dashboard=False,
        log_to_driver=False,
    )
    yield
    ray.shutdown()
