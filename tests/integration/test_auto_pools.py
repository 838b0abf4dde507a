"""`pools: auto` on a cluster of two nodes with a (logical) GPU each."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest
from cluster_keeper import cluster

pytestmark = [pytest.mark.ray, pytest.mark.slow, pytest.mark.timeout(900)]

# The models compute on CPUs: no CUDA is behind these GPUs. The pools are chosen as for GPUs.
JOB = """
import json, sys
from pathlib import Path
from jobs_for_tests import job, plan_of
from pipeline.executors.cluster import connected
from pipeline.run import run
from pipeline.settings import Settings
from pipeline.resources.sizing import AutoPools, Work, pools_for

folder, address = Path(sys.argv[1]), sys.argv[2]
recipe = job(folder / "shapes", limit=4, model={"name": "tiny", "num_frames": 4, "device": "cpu"})
plan = plan_of(recipe, folder / "cache")
auto = AutoPools(work=Work({"decode": 1.0, "compress": 1.0, "answer": 3.0}, num_clips=4))
with connected(address) as nodes:
    pools = pools_for(auto, nodes)
    results = list(run(plan, Settings(pools=auto, address=address, device="cpu")))
print(json.dumps({
    "pools": {name: [getattr(pools, name).least, getattr(pools, name).num_gpus,
                     getattr(pools, name).num_cpus] for name in ("compress", "answer")},
    "status": [result.status for result in results],
}))
"""


def test_both_models_get_a_gpu_of_their_own_and_the_job_runs_on_both_nodes(tmp_path):
    with cluster("one", "two") as (keeper, nodes):
        done = subprocess.run(
            [sys.executable, "-c", f"import sys; sys.path[:] = {sys.path!r}\n{JOB}",
             str(tmp_path), keeper.address],
            capture_output=True, text=True, timeout=600,
        )  # fmt: skip
        assert done.returncode == 0, done.stderr
        actors = {name: node for name, node, *_ in keeper.actors() if "MapBatches" in name}
    said = json.loads(done.stdout.splitlines()[-1])
    assert {name: one[:2] for name, one in said["pools"].items()} == {
        "compress": [1, 1],
        "answer": [1, 1],
    }
    assert said["status"] == ["ok"] * 4
    assert len(actors) == 2
    assert set(actors.values()) == set(nodes.values()), "one model on each node"
