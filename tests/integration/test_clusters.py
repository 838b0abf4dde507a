"""Jobs on a running cluster of two nodes: submitted to its dashboard, or joining it.

A client that sends jobs gets nothing but a copied recipe and four variables. The job's method waits
for a file, so that every test decides itself how far the job is.
"""

from __future__ import annotations

import json
import os
import platform
import subprocess
import sys
import sysconfig

import pytest
from methods_as_files import own_method
from ray_head import NO_TOKEN, ROOT, Client, ray_cluster
from waiting import until

# A busy machine may be slow; what is waited for is a condition, never a time.
WAIT_S = 180
pytestmark = [pytest.mark.ray, pytest.mark.slow, pytest.mark.timeout(900)]

# It keeps the first tokens, once a file is there.
HELD = own_method(
    "Held",
    imports="import time\nfrom pathlib import Path",
    option='file: str = ""',
    first="while not Path(self.file).exists():\n    time.sleep(0.1)\n",
)


class Submitting(Client):
    """Sends a method of their own along.

    Args:
        folder: Holds their directory and one for the cluster.
        address: Of the head.
    """

    def __init__(self, folder, address):
        self.go, self.runs = folder / "go", folder / "cluster" / "runs"
        self.submit = ("submit", "recipe.yaml", "--working-dir", "code")
        self.submit += ("--directory", str(folder / "cluster"))
        method = {"name": "own_methods:Held", "retention": 0.5, "file": str(self.go)}
        variables = {**NO_TOKEN, "RAY_ADDRESS": address}
        super().__init__(folder / "client", method, 3, code=HELD, **variables)

    def jobs(self):
        """Their jobs on the cluster, the newest last."""
        code, out, err = self.run("jobs", "list", "--json")
        assert code == 0, err
        return [job for job in json.loads(out) if str(self.runs.parent) in job["entrypoint"]]

    def wait_for(self, status):
        """The newest job, as soon as it has a status."""
        until(lambda: self.jobs()[-1]["status"] == status, status, WAIT_S)
        return self.jobs()[-1]


@pytest.fixture(scope="module")
def cluster(tmp_path_factory):
    """Its addresses for clients (the dashboard) and for drivers."""
    with ray_cluster(tmp_path_factory.mktemp("home")) as addresses:
        yield addresses


@pytest.fixture
def client(cluster, tmp_path):
    """A client whose jobs no other test has sent."""
    return Submitting(tmp_path, cluster[0])


def read_until(process, text):
    """Read a command's output up to a line."""
    seen = []
    for line in process.stdout:
        seen.append(line)
        if text in line:
            return
    pytest.fail(f"no {text!r} in {seen} {process.stderr.read()}")


def test_a_job_survives_its_client_and_is_found_stopped_and_continued(client):
    # A client that is killed takes nothing with it; `test_submit.py` has the one with Ctrl-C.
    with client.start(*client.submit) as process:
        read_until(process, "3 clips to decode and encode")
        process.kill()

    # The same job again is the same job.
    code, out, err = client.run(*client.submit, "--no-wait")
    assert code == 0, err
    job_id = out.strip()
    assert f"this job already runs as {job_id}" in err
    (job,) = client.jobs()
    assert (job["id"], job["status"]) == (job_id, "RUNNING")

    # Stopped, it is continued by the same command; its run is the same directory.
    code, _, err = client.run("jobs", "stop", job_id)
    assert (code, "is stopping" in err) == (0, True)
    assert client.wait_for("STOPPED")["exit_code"] == 143
    (run_dir,) = (path.parent for path in client.runs.glob("*/job.yaml"))
    client.go.touch()
    code, out, err = client.run(*client.submit)
    assert code == 0, err + out
    assert f"continuing runs/{run_dir.name}" in out
    assert "3 of 3 clips" in out
    assert list(client.runs.glob("*/summary.json")) == [run_dir / "summary.json"]
    (first, second) = client.jobs()
    assert (first["id"], second["id"]) == (job_id, job_id[:-1] + "2")
    assert f"{second['id']}: SUCCEEDED, exit code 0" in err


def test_the_exit_code_of_the_job_is_returned_and_code_is_sent(client):
    code, out, err = client.run(
        *client.submit, "--with-code", "--command", "sweep", "--env", "SOME=1", "--",
        "--set", "benchmark.name=mlvu", "--set", "benchmark.root=/nowhere",
    )  # fmt: skip
    assert code == 2, err + out
    assert "benchmark.root '/nowhere' is not a folder" in out
    assert f"in {client.runs.parent}" in out
    assert "FAILED, exit code 2" in err
    code, out, _ = client.run("jobs", "status", client.jobs()[-1]["id"])
    assert code == 0
    assert "failed with exit code 2" in out


# It keeps the first tokens, and records where it runs.
TELLING = own_method(
    "Telling",
    imports="import json\nimport os\nimport sys\nfrom pathlib import Path",
    option='file: str = ""',
    first="""\
told = {"python": sys.executable, "path": sys.path, "environment": dict(os.environ)}
told["sent"] = sorted(path.name for path in Path(__file__).parent.iterdir())
Path(self.file).write_text(json.dumps(told))
""",
)


def test_the_job_uses_nothing_of_the_client_environment(tmp_path, cluster):
    """The client has an environment in the directory that it sends along."""
    there, told = tmp_path / "cluster", tmp_path / "told.json"
    own = tmp_path / "client/code/.venv"
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", own], check=True)
    client = Client(
        tmp_path / "client",
        {"name": "own_methods:Telling", "retention": 0.5, "file": str(told)},
        2,
        code=TELLING,
        python=own / "bin/python",
        VIRTUAL_ENV=str(own),
        PYTHONPATH=os.pathsep.join([str(ROOT), sysconfig.get_path("purelib")]),
        **NO_TOKEN,
    )
    code, out, err = client.run(
        *("submit", "recipe.yaml", "--address", cluster[0]),
        *("--working-dir", "code", "--directory", str(there)),
    )
    assert code == 0, err + out
    assert "2 decoded, 2 encoded, 0 failed" in out
    assert f"tango: Python {platform.python_version()} ({sys.executable}) on " in out
    (facts,) = there.glob("runs/*/facts.json")
    for text in (out, told.read_text(), facts.read_text()):
        assert str(client.folder) not in text
    worker = json.loads(told.read_text())
    assert worker["python"] == sys.executable
    assert ".venv" not in worker["sent"]
