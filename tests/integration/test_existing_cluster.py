"""A job on a Ray cluster that somebody else started, with more than one node."""

from __future__ import annotations

import subprocess
import sys

import pytest
import yaml

pytestmark = [pytest.mark.ray, pytest.mark.slow, pytest.mark.timeout(600)]


@pytest.fixture
def address(tmp_path):
    """A head and a second node on this machine, in processes of their own."""
    code = """
import sys
from ray.cluster_utils import Cluster
cluster = Cluster(initialize_head=True, head_node_args={"num_cpus": 2, "include_dashboard": False})
cluster.add_node(num_cpus=2)
cluster.wait_for_nodes()
print(cluster.address, flush=True)
sys.stdin.read()
cluster.shutdown()
"""
    with subprocess.Popen(
        [sys.executable, "-c", code],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
    ) as cluster:
        for line in cluster.stdout:
            if line.count(":") == 1 and line.strip().rpartition(":")[2].isdigit():
                yield line.strip()
                break
        cluster.stdin.close()
        cluster.wait(timeout=120)


def test_a_sweep_runs_on_an_existing_cluster_and_leaves_it_running(address, tmp_path):
    recipe = {
        "benchmark": {"name": "shapes", "root": str(tmp_path / "shapes")},
        "methods": [{"name": "full"}, {"name": "tango", "retention": 0.2}],
    }
    (tmp_path / "recipe.yaml").write_text(yaml.safe_dump(recipe))
    command = [sys.executable, "-m", "jobs.cli.main", "sweep", "recipe.yaml"]
    for expected in ("4 decoded, 4 encoded", "0 decoded, 0 encoded"):
        done = subprocess.run(
            [*command, "--limit", "4", "--address", address],
            cwd=tmp_path,
            capture_output=True,
            text=True,
            timeout=240,
        )
        assert done.returncode == 0, done.stderr
        assert expected in done.stdout
