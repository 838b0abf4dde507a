"""Images: no root, a minimal build context, and a working health check."""

from __future__ import annotations

import re
import subprocess
import sys
import threading
from http.server import BaseHTTPRequestHandler, HTTPServer

import pytest
import yaml
from infra_files import INFRA, ROOT, compose_files, dockerfiles, name_of


def instructions(path):
    """(instruction, rest) of a Dockerfile, continued lines joined."""
    text = re.sub(r"^#.*\n", "", path.read_text(), flags=re.M).replace("\\\n", " ")
    return [tuple(line.split(None, 1)) for line in text.splitlines() if line.strip()]


@pytest.mark.parametrize("path", dockerfiles(), ids=name_of)
def test_images_run_without_root_and_have_a_health_check(path):
    found = dict(instructions(path))
    assert re.fullmatch(r"[1-9]\d+:[1-9]\d+", found["USER"])
    assert "CMD" in found["HEALTHCHECK"]
    installs = [rest for name, rest in instructions(path) if "pip install" in rest]
    assert installs
    assert all("--constraint /constraints.txt" in rest for rest in installs)


@pytest.mark.parametrize("path", dockerfiles(), ids=name_of)
def test_the_build_context_only_contains_copied_files(path):
    ignore = path.with_name("Dockerfile.dockerignore").read_text().splitlines()
    rules = [line for line in ignore if line and not line.startswith("#")]
    assert rules[0] == "*"
    allowed = {line[1:] for line in rules if line.startswith("!")}
    copied = {
        word
        for name, rest in instructions(path)
        if name == "COPY" and "--from" not in rest
        for word in rest.split()[:-1]
    }
    assert allowed == copied
    assert all((ROOT / name).exists() for name in copied)


@pytest.mark.parametrize("index", ["", "https://example.org/whl/cpu"])
def test_only_pytorch_is_installed_from_its_index(tmp_path, index):
    """Exact versions of what torch needs are on few of them; the next step installs those."""
    done = subprocess.run(
        ["make", "--dry-run", "setup", f"VENV={tmp_path}/venv", f"TORCH_INDEX={index}"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert done.returncode == 0, done.stderr
    torch, rest = (line for line in done.stdout.splitlines() if " install " in line)
    assert torch.split(" torch")[1].split() == (
        ["--no-deps", "--index-url", index] if index else []
    )
    assert rest.endswith("--constraint infra/constraints.txt --quiet --editable '.[dev]'")


@pytest.mark.parametrize("path", compose_files(), ids=name_of)
def test_compose_files_are_local_and_contain_no_secrets(path):
    services = yaml.safe_load(path.read_text())["services"]
    for service in services.values():
        for port in service.get("ports", ()):
            assert re.match(r"(127\.0\.0\.1|\$\{\w+:-127\.0\.0\.1\}):", port)
        for name, value in service.get("environment", {}).items():
            if re.search(r"PASSWORD|SECRET|KEY|DATABASE$", name):
                assert re.search(r"\$\{\w+(:\?[^}]*)?\}", value), name
        assert "healthcheck" in service or "build" in service
    ignored = subprocess.run(["git", "check-ignore", "infra/mlflow/.env"], cwd=ROOT)
    assert ignored.returncode == 0


class Raylet(BaseHTTPRequestHandler):
    """Answers as Ray's agent on a node does."""

    text = b"success"

    def do_GET(self):
        self.send_response(200 if self.path == "/api/local_raylet_healthz" else 404)
        self.end_headers()
        self.wfile.write(self.text)


def healthy(folder, *flags, **environment):
    """Exit code and words of the health check in a container with this folder for Ray."""
    done = subprocess.run(
        [sys.executable, *flags, INFRA / "docker/healthy.py"],
        env={"PYTHONPATH": str(ROOT), "RAY_TMPDIR": str(folder), **environment},
        capture_output=True,
        text=True,
        timeout=120,
    )
    return done.returncode, done.stderr


def test_a_container_without_ray_is_healthy_if_the_project_can_be_imported(tmp_path):
    assert healthy(tmp_path) == (0, "")
    code, said = healthy(tmp_path, "-S")  # without installed packages, so without torch
    assert code == 1
    assert said.startswith("No module named")


@pytest.mark.parametrize("text", [b"success", b"no", None])
def test_a_container_with_ray_is_healthy_if_its_raylet_is(tmp_path, text):
    (tmp_path / "ray").mkdir()
    (tmp_path / "ray/ray_current_cluster").write_text("10.0.0.1:6379")
    if text is None:
        code, said = healthy(tmp_path, RAY_DASHBOARD_AGENT_PORT="1")
        assert said.startswith("the Ray node of this container does not answer")
    else:
        with HTTPServer(("127.0.0.1", 0), type("Answer", (Raylet,), {"text": text})) as server:
            threading.Thread(target=server.serve_forever, daemon=True).start()
            code, _ = healthy(tmp_path, RAY_DASHBOARD_AGENT_PORT=str(server.server_port))
            server.shutdown()
    assert code == (text != b"success")
