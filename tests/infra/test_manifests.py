"""Files of infra/ and workflows: linters, schemas, versions; images and their health check."""

from __future__ import annotations

import re
import subprocess
import sys
import threading
import tomllib
from http.server import BaseHTTPRequestHandler, HTTPServer

import pytest
import yaml
from documented import (
    INFRA,
    ROOT,
    compose_files,
    dockerfiles,
    name_of,
    program,
    shell_scripts,
    tracked,
)


def check(*command):
    """Run a checker; what it prints is the reason of the failure."""
    done = subprocess.run([*map(str, command)], capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.parametrize("path", shell_scripts(), ids=name_of)
def test_shell_scripts_pass_shellcheck(path):
    check("bash", "-n", path)
    check(program("shellcheck"), path)


@pytest.mark.parametrize("path", dockerfiles(), ids=name_of)
def test_dockerfiles_follow_the_rules_of_hadolint(path):
    check(program("hadolint"), "--failure-threshold", "style", path)


@pytest.mark.parametrize("path", compose_files(), ids=name_of)
def test_compose_files_follow_the_schema_of_the_compose_specification(path):
    check(program("check-jsonschema"), "--builtin-schema", "vendor.compose-spec", path)


@pytest.mark.parametrize("path", tracked(".github/workflows"), ids=name_of)
def test_workflows_follow_their_schema(path):
    check(program("check-jsonschema"), "--builtin-schema", "vendor.github-workflows", path)


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


EXACT = dict(
    line.split("==")
    for line in (INFRA / "constraints.txt").read_text().splitlines()
    if "==" in line
)
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
# name[extra]==1.2.3, name:1.2.3, name: "1.2.3", nameVersion: 1.2.3
NAMED = re.compile(
    r"(?<![\w-])(?P<name>ray|torch|mlflow|python)(?:\[[\w,]*\])?(?:Version)?[\"']?"
    r"\s*(?:==?|:)\s*[\"']?v?(?P<version>\d+\.\d+(?:\.\d+)?)",
    re.IGNORECASE,
)
# python3.11, and the tag of Ray's images: py311
SHORT = re.compile(r"\b(?:python|py)3\.?(?P<minor>1\d)\b")


def versions_in(text):
    """(name, version) of everything that a text pins."""
    found = [(one["name"].lower(), one["version"]) for one in NAMED.finditer(text)]
    return [*found, *(("python", f"3.{one['minor']}") for one in SHORT.finditer(text))]


def is_right(name, version):
    """Whether a version is that of constraints.txt; Python's is the one that the suite runs on."""
    if name == "python":
        return re.match(r"3\.\d+", version)[0] == PROJECT["requires-python"].removeprefix(">=")
    return version == EXACT[name]


def test_versions_agree_with_the_constraints():
    for path in tracked("infra"):
        if path.suffix != ".png":
            assert [it for it in versions_in(path.read_text()) if not is_right(*it)] == [], path
