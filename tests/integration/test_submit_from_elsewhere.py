"""A job sent from a virtual environment of its own, to one of two clusters on a machine.

The client has what it needs and no more: the extras `pipeline` and `jobs`. Its environment lies in
the directory that it sends along. The job's method says where it is.
"""

from __future__ import annotations

import json
import os
import platform
import subprocess
import sys

import pytest
import yaml
from ray_head import ROOT, ray_cluster

pytestmark = [pytest.mark.ray, pytest.mark.slow, pytest.mark.timeout(900)]

TELLING = '''
"""A method of one's own, sent along: it keeps the first tokens, and says where it runs."""

import json
import os
import sys
from dataclasses import dataclass
from pathlib import Path

import ray
import torch
from tango_core.compressors.base import Compressor, num_kept, select


@dataclass(frozen=True)
class Telling(Compressor):
    """Write what the worker is, then keep the first tokens."""

    file: str = ""

    def _compress(self, features):
        told = {
            "executable": sys.executable,
            "prefix": sys.prefix,
            "path": sys.path,
            "environment": dict(os.environ),
            "sent": sorted(path.name for path in Path(__file__).parent.iterdir()),
            "cluster": ray.get_runtime_context().gcs_address,
        }
        Path(self.file).write_text(json.dumps(told))
        total = features.tokens[..., 0].numel()
        return select(features, torch.arange(num_kept(total, self.retention)))
'''


@pytest.fixture
def python(tmp_path):
    """The interpreter of the client."""
    environment = tmp_path / "client/code/.venv"
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", environment], check=True)
    (packages,) = environment.glob("lib/python3*/site-packages")
    linked = [sys.executable, ROOT / "infra/linked_packages.py", packages, "pipeline", "jobs"]
    subprocess.run(linked, check=True)
    (packages / "tango.pth").write_text(str(ROOT))
    return environment / "bin/python"


@pytest.fixture
def older_cluster(tmp_path):
    """Dashboard and GCS of a cluster; another one has started after it."""
    (tmp_path / "home").mkdir()
    with ray_cluster(tmp_path / "home") as older, ray_cluster(tmp_path / "home"):
        yield older


def test_nothing_of_the_client_reaches_the_job(tmp_path, python, older_cluster):
    dashboard, cluster = older_cluster
    client, there = tmp_path / "client", tmp_path / "cluster"
    (client / "code/own_methods.py").write_text(TELLING)
    told = tmp_path / "told.json"
    method = {"name": "own_methods:Telling", "retention": 0.5, "file": str(told)}
    recipe = {"benchmark": {"name": "shapes"}, "method": method, "limit": 2}
    (client / "recipe.yaml").write_text(yaml.safe_dump(recipe))
    environment = {
        "PATH": os.pathsep.join([str(python.parent), os.defpath]),
        "HOME": str(client),
        "VIRTUAL_ENV": str(python.parents[1]),
        "PYTHONPATH": str(client / "modules"),
        "RAY_AUTH_MODE": "disabled",
    }

    def run(*arguments):
        return subprocess.run(
            [python, *arguments],
            cwd=client,
            env=environment,
            capture_output=True,
            text=True,
            timeout=600,
        )

    # The client is another environment, and a small one.
    found = "import sys, importlib.util as it; print(sys.prefix, it.find_spec('transformers'))"
    assert run("-c", found).stdout.split() == [environment["VIRTUAL_ENV"], "None"]

    done = run(
        *("-m", "jobs.cli.entry", "submit", "recipe.yaml", "--address", dashboard),
        *("--working-dir", "code", "--directory", str(there)),
    )
    assert done.returncode == 0, done.stderr + done.stdout
    assert "2 decoded, 2 encoded, 0 failed" in done.stdout

    # The driver is the head's interpreter, the worker too, and both are of the cluster asked for.
    version = platform.python_version()
    assert f"tango: Python {version} ({sys.executable}) on " in done.stdout
    assert str(client) not in done.stdout
    worker = json.loads(told.read_text())
    assert (worker["executable"], worker["prefix"]) == (sys.executable, sys.prefix)
    assert worker["cluster"] == cluster
    assert worker["environment"].get("VIRTUAL_ENV") == os.environ.get("VIRTUAL_ENV")
    assert str(client) not in told.read_text()
    assert not {".venv", "bin", "lib"} & set(worker["sent"])
    (facts,) = there.glob("runs/*/facts.json")
    assert json.loads(facts.read_text())["versions"]["python"] == version
    assert str(client) not in facts.read_text()
