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
from cluster_client import Client
from methods_as_files import own_method
from ray_head import NO_TOKEN, ROOT, ray_cluster

pytestmark = [pytest.mark.ray, pytest.mark.slow, pytest.mark.timeout(900)]

# It keeps the first tokens, and says where it runs.
TELLING = own_method(
    "Telling",
    imports="import json\nimport os\nimport sys\nfrom pathlib import Path\n\nimport ray",
    option='file: str = ""',
    first="""\
told = {
    "executable": sys.executable,
    "prefix": sys.prefix,
    "path": sys.path,
    "environment": dict(os.environ),
    "sent": sorted(path.name for path in Path(__file__).parent.iterdir()),
    "cluster": ray.get_runtime_context().gcs_address,
}
Path(self.file).write_text(json.dumps(told))
""",
)


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
    there, told = tmp_path / "cluster", tmp_path / "told.json"
    client = Client(
        tmp_path / "client",
        {"name": "own_methods:Telling", "retention": 0.5, "file": str(told)},
        2,
        code=TELLING,
        python=python,
        PATH=os.pathsep.join([str(python.parent), os.defpath]),
        VIRTUAL_ENV=str(python.parents[1]),
        PYTHONPATH=str(tmp_path / "client/modules"),
        **NO_TOKEN,
    )

    # The client is another environment, and a small one.
    found = "import sys, importlib.util as it; print(sys.prefix, it.find_spec('transformers'))"
    said = subprocess.check_output([python, "-c", found], env=client.environment, text=True)
    assert said.split() == [str(python.parents[1]), "None"]

    code, out, err = client.run(
        *("submit", "recipe.yaml", "--address", dashboard),
        *("--working-dir", "code", "--directory", str(there)),
    )
    assert code == 0, err + out
    assert "2 decoded, 2 encoded, 0 failed" in out

    # The driver is the head's interpreter, the worker too, and both are of the cluster asked for.
    version = platform.python_version()
    assert f"tango: Python {version} ({sys.executable}) on " in out
    assert str(client.folder) not in out
    worker = json.loads(told.read_text())
    assert (worker["executable"], worker["prefix"]) == (sys.executable, sys.prefix)
    assert worker["cluster"] == cluster
    assert worker["environment"].get("VIRTUAL_ENV") == os.environ.get("VIRTUAL_ENV")
    assert str(client.folder) not in told.read_text()
    assert not {".venv", "bin", "lib"} & set(worker["sent"])
    (facts,) = there.glob("runs/*/facts.json")
    assert json.loads(facts.read_text())["versions"]["python"] == version
    assert str(client.folder) not in facts.read_text()
