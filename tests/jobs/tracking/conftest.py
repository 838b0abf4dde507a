"""MLflow stores for tests: real ones, made once and copied, because making one takes seconds."""

from __future__ import annotations

import shutil

import pytest


@pytest.fixture(scope="session")
def empty_store(tmp_path_factory):
    """A SQLite store without runs; copy it."""
    from mlflow import MlflowClient

    path = tmp_path_factory.mktemp("store") / "mlflow.db"
    MlflowClient(tracking_uri=f"sqlite:///{path}").search_experiments()
    return path


@pytest.fixture
def store(empty_store, tmp_path):
    """Address of a store of the test's own, beside `tmp_path/run`."""
    return f"sqlite:///{shutil.copy(empty_store, tmp_path / 'mlflow.db')}"


@pytest.fixture
def client(store):
    """MLflow's own client for it."""
    from mlflow import MlflowClient

    return MlflowClient(tracking_uri=store)
