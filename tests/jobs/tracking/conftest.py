"""MLflow stores for tests: real ones, made once and copied, because making one takes seconds."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import time
import urllib.request

import pytest
from free_ports import free_port


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


@pytest.fixture(scope="session")
def mlflow_server(empty_store, tmp_path_factory):
    """Port of a real MLflow server on this machine."""
    folder = tmp_path_factory.mktemp("server")
    shutil.copy(empty_store, folder / "server.db")
    port = free_port()
    command = [sys.executable, "-m", "mlflow", "server", "--host", "127.0.0.1", "--port", str(port),
               "--workers", "1", "--backend-store-uri", f"sqlite:///{folder}/server.db",
               "--artifacts-destination", str(folder / "store")]  # fmt: skip
    with open(folder / "server.log", "w") as log:
        process = subprocess.Popen(command, stdout=log, stderr=log, start_new_session=True)
        try:
            deadline = time.monotonic() + 200
            while True:
                try:
                    urllib.request.urlopen(f"http://127.0.0.1:{port}/health", timeout=5).close()
                    break
                except OSError:
                    assert process.poll() is None, (folder / "server.log").read_text()
                    assert time.monotonic() < deadline, (folder / "server.log").read_text()
                    time.sleep(0.5)
            yield port
        finally:
            os.killpg(process.pid, signal.SIGTERM)
            process.wait(240)
