"""The MLflow stack without containers: a PostgreSQL from Debian and a server with a password."""

from __future__ import annotations

import os
import runpy
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import pytest
import requests
from documented import INFRA
from fake_answers import cell, facts_of, fake_answers, write_run
from free_ports import free_port

from jobs.report.compare import write_report

# Of a server that starts beside many other processes.
START_S = 240


class Stack:
    """A running stack, in a folder that the user `postgres` may enter."""

    def __init__(self, folder):
        self.folder = folder
        port = str(free_port())
        self.url = f"http://127.0.0.1:{port}"
        self.log = (folder / "log").open("ab")
        self.process = subprocess.Popen(
            [INFRA / "mlflow/without_containers.sh", folder, "--port", port, "--workers", "1"],
            env={**os.environ, "PYTHON": sys.executable},
            stdout=self.log,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
        end = time.monotonic() + START_S
        while not self._is_up():
            said = (folder / "log").read_text()
            assert self.process.poll() is None, said
            assert time.monotonic() < end, said
            time.sleep(0.5)
        lines = (folder / "env").read_text().splitlines()
        self.secrets = dict(line.split("=", 1) for line in lines)

    def _is_up(self):
        try:
            return requests.get(f"{self.url}/health", timeout=10).ok
        except requests.RequestException:
            return False

    def ask(self, path, body=None, *, password=None):
        """Reply of the REST API to the administrator; to nobody with an empty password."""
        password = self.secrets["MLFLOW_AUTH_ADMIN_PASSWORD"] if password is None else password
        method = "GET" if body is None else "POST"
        user = ("admin", password) if password else None
        return requests.request(method, f"{self.url}/{path}", json=body, auth=user, timeout=60)

    def stop(self):
        """As Ctrl-C or a service manager does; the exit code is that of the signal."""
        self.process.send_signal(signal.SIGTERM)
        code = self.process.wait(timeout=120)
        self.log.close()
        return code


@pytest.fixture(scope="module")
def folder():
    """Below /tmp, because pytest's own folders may be closed to other users."""
    path = Path(tempfile.mkdtemp(prefix="tango-mlflow-", dir="/tmp"))
    path.chmod(0o755)
    yield path
    shutil.rmtree(path, ignore_errors=True)


@pytest.fixture(scope="module")
def stack(folder):
    running = Stack(folder)
    yield running
    if running.process.poll() is None:
        running.stop()


@pytest.fixture(scope="module")
def logged(stack, tmp_path_factory):
    """A finished run that `tango log-run` uploaded: its folder."""
    facts = facts_of(cell("full"), cell("tango", 0.1), run_id="sweep-1")
    run = tmp_path_factory.mktemp("runs") / "sweep-1"
    write_run(run, fake_answers(facts, num_clips=6), facts)
    write_report(run)
    done = subprocess.run(
        [sys.executable, "-m", "jobs.cli.entry", "log-run", run, "--tracking-uri", stack.url],
        env={
            **os.environ,
            "MLFLOW_TRACKING_USERNAME": "admin",
            "MLFLOW_TRACKING_PASSWORD": stack.secrets["MLFLOW_AUTH_ADMIN_PASSWORD"],
        },
        capture_output=True,
        text=True,
        timeout=240,
    )
    assert done.returncode == 0, done.stderr
    return run


pytestmark = pytest.mark.timeout(900)


@pytest.mark.system
@pytest.mark.parametrize("password", ["", "wrong-password"])
def test_requests_without_the_password_are_refused(stack, password):
    for path, body in (
        ("api/2.0/mlflow/experiments/search", {"max_results": 1}),
        ("api/2.0/mlflow/experiments/create", {"name": "intruder"}),
        ("", None),
    ):
        assert stack.ask(path, body, password=password).status_code == 401


@pytest.mark.system
def test_a_run_is_logged_and_read_back_over_rest(stack, logged):
    found = stack.ask("api/2.0/mlflow/experiments/search", {"max_results": 100}).json()
    experiments = [one["experiment_id"] for one in found["experiments"]]
    body = {"experiment_ids": experiments, "max_results": 100}
    runs = stack.ask("api/2.0/mlflow/runs/search", body).json()["runs"]
    tags = [{one["key"]: one["value"] for one in run["data"]["tags"]} for run in runs]
    (parent,) = (
        run for run, own in zip(runs, tags, strict=True) if "mlflow.parentRunId" not in own
    )
    assert parent["info"]["status"] == "FINISHED"
    assert len(runs) == 3  # and one for each cell
    assert parent["info"]["artifact_uri"].startswith("mlflow-artifacts:")
    query = f"run_id={parent['info']['run_id']}"
    listed = stack.ask(f"api/2.0/mlflow/artifacts/list?{query}").json()["files"]
    path = next(one["path"] for one in listed if one["path"].endswith(".json"))
    content = stack.ask(f"get-artifact?{query}&path={path}").content
    assert content == (logged / path).read_bytes()


@pytest.mark.system
def test_no_secret_is_in_an_argument_or_in_a_file_that_others_can_read(stack):
    secrets = [value for name, value in stack.secrets.items() if name != "S3_ACCESS_KEY"]
    arguments = subprocess.run(["ps", "-eo", "args"], capture_output=True, text=True).stdout
    assert str(stack.folder) in arguments
    assert not [secret for secret in secrets if secret in arguments]
    readable = [
        path
        for path in stack.folder.iterdir()
        if path.is_file() and path.stat().st_mode & 0o077 and path.name != "log"
    ]
    text = b"".join(path.read_bytes() for path in [*readable, stack.folder / "log"])
    assert not [secret for secret in secrets if secret.encode() in text]


@pytest.mark.system
def test_the_stack_stops_and_restarts_with_its_data(stack, logged):
    """The last test of the file: it stops the stack of the others."""
    assert stack.stop() == 143
    assert not (stack.folder / "database/postmaster.pid").exists()
    again = Stack(stack.folder)
    try:
        found = again.ask("api/2.0/mlflow/experiments/search", {"max_results": 100})
        assert len(found.json()["experiments"]) == 2
    finally:
        again.stop()


def test_the_server_does_not_start_without_its_settings():
    done = subprocess.run(
        [sys.executable, INFRA / "mlflow/serve.py"],
        env={"TANGO_MLFLOW_DATABASE": "sqlite://"},
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert done.returncode == 1
    (line,) = done.stderr.splitlines()
    assert "TANGO_MLFLOW_ARTIFACTS, MLFLOW_AUTH_ADMIN_PASSWORD" in line


def test_new_secrets_are_private_and_replace_none(tmp_path):
    file = tmp_path / "env"
    for code in (0, 1):
        done = subprocess.run([INFRA / "mlflow/new_env.sh", file], capture_output=True, timeout=60)
        assert done.returncode == code
        assert file.stat().st_mode & 0o777 == 0o600
    values = [line.split("=")[1] for line in file.read_text().splitlines()]
    assert len(set(values)) == len(values) == 5
    assert all(len(value) == 48 for value in values if value != "tango-mlflow")


def test_configured_host_names_are_allowed(tmp_path):
    from mlflow.server.security_utils import is_allowed_host_header

    serve = runpy.run_path(str(INFRA / "mlflow/serve.py"))
    needed = dict.fromkeys(serve["NEEDED"], "sqlite://")
    assert "MLFLOW_SERVER_ALLOWED_HOSTS" not in serve["settings"](needed, tmp_path)
    names = {"TANGO_MLFLOW_HOSTS": "mlflow.example.com, gpu-box"}
    found = serve["settings"](needed | names, tmp_path)["MLFLOW_SERVER_ALLOWED_HOSTS"].split(",")
    for host in ("127.0.0.1:5000", "10.1.2.3:5000", "mlflow.example.com", "gpu-box:5000"):
        assert is_allowed_host_header(found, host)
    assert not is_allowed_host_header(found, "evil.example.com")
