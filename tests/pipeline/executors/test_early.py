"""A Ray that starts in the background, and what it may write to the terminal meanwhile."""

from __future__ import annotations

import subprocess
import sys
from contextlib import nullcontext
from pathlib import Path

import pytest

from pipeline.errors import ClusterError
from pipeline.executors.early import EarlyRay, started_early

NATIVE = "[2026-01-31 12:00:00,000 I 42 42] logging.cc:303: Set ray log level"


def test_lines_of_rays_core_are_dropped_and_ours_pass():
    code = f"""
import os, sys
from pipeline.executors.quiet import without_native_lines
with without_native_lines():
    os.write(2, b"{NATIVE}\\n(raylet) spilling\\nours 1\\n")
    print("ours 2", file=sys.stderr)
    os.write(2, b"unfinished")
print("after", file=sys.stderr)
os.write(2, b"{NATIVE}\\n")
"""
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=True
    )
    said = done.stderr.replace("unfinished", "unfinished\n").split("\n")
    assert sorted(line for line in said if line) == sorted(
        ["ours 1", "ours 2", "unfinished", "after", NATIVE]
    )


def test_an_address_without_a_cluster_is_reported_where_it_is_waited_for():
    early = EarlyRay("127.0.0.1:1")
    with pytest.raises(ClusterError, match=r"no Ray cluster at --address 127\.0\.0\.1:1"):
        early.wait(240)
    early.close(240)


def test_nothing_starts_for_a_job_that_does_not_run_on_ray():
    with started_early(False, None) as early:
        assert early is None


@pytest.mark.ray
def test_a_connected_ray_is_not_started_again(local_ray):
    with started_early(True, None) as early:
        assert early is None


@pytest.mark.parametrize("last", [True, False])
@pytest.mark.parametrize(
    ("fails", "nodes", "in_order"),
    [
        (True, [True], False),
        (False, [True, False], False),
        (False, None, False),
        (False, [True, True], True),
    ],
)
def test_a_command_that_fails_or_lost_a_node_says_so_before_it_leaves_the_cluster(
    last, fails, nodes, in_order, monkeypatch
):
    def known_nodes():
        if nodes is None:
            raise ConnectionError("the head does not answer")
        return [{"Alive": alive} for alive in nodes]

    disconnected = []
    monkeypatch.setattr("ray.nodes", known_nodes)
    monkeypatch.setattr("ray.is_initialized", lambda: False)
    monkeypatch.setattr("pipeline.executors.cluster.connect", lambda address: None)
    monkeypatch.setattr("pipeline.executors.cluster.disconnect", disconnected.append)
    failure = RuntimeError("a node was lost") if fails else None
    with (
        pytest.raises(RuntimeError, match="a node was lost") if fails else nullcontext(),
        started_early(True, "127.0.0.1:1", last=last) as early,
    ):
        early.wait(120)
        if failure:
            raise failure
    assert len(disconnected) == (in_order or not last)
    early.close(60)
    assert len(disconnected) == 1


@pytest.mark.slow
def test_rays_processes_live_until_it_is_closed_and_no_longer():
    code = """
import psutil, ray
from pipeline.executors.early import connected
from pipeline.executors.early import started_early
with started_early(True, None) as early:
    with connected(None, early) as nodes:
        assert len(nodes) == 1
    assert ray.is_initialized()  # whoever started it ends it
    assert ray.get(ray.remote(num_cpus=0)(lambda: 7).remote()) == 7
    of_ray = psutil.Process().children(recursive=True)
    assert of_ray
gone, alive = psutil.wait_procs(of_ray, timeout=60)
assert not alive, alive
assert not ray.is_initialized()
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=280)
    assert done.returncode == 0, done.stderr[-2000:]


@pytest.mark.slow
def test_a_second_ray_waits_for_one_that_is_left_to_end_by_itself():
    code = """
import ray
from pipeline.executors.early import connected
from pipeline.executors.early import EarlyRay, started_early
ports = []
for _ in range(2):
    with started_early(True, None, last=True) as early:
        assert early is not None  # not the one that is about to end
        with connected(None, early) as nodes:
            assert len(nodes) == 1
            ports.append(ray.get_runtime_context().gcs_address)
    assert EarlyRay._closing
assert len(set(ports)) == 2
EarlyRay.wait_for_closing()
assert not ray.is_initialized()
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=280)
    assert done.returncode == 0, done.stderr[-2000:]


@pytest.mark.slow
def test_what_ray_put_on_the_disk_is_removed_by_a_process_that_ends_at_once():
    code = """
import json, os, ray
from pathlib import Path
from pipeline.executors.early import connected
from pipeline.executors.early import started_early
with started_early(True, None, last=True) as early, connected(None, early):
    node = ray._private.worker._global_node
    where = json.loads(node._config["object_spilling_config"])["params"]["directory_path"]
    folder = Path(where) / f"ray_spilled_objects_{node._node_id}"  # as Ray's workers name it
    folder.mkdir(exist_ok=True)
    (folder / "frames").write_bytes(bytes(1000))
    print(folder, flush=True)
os._exit(0)
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=280)
    assert done.returncode == 0, done.stderr[-2000:]
    assert not Path(done.stdout.strip()).exists()


def test_a_worker_that_decodes_loads_no_torch():
    code = (
        "import sys, pipeline.executors.workers\n"
        "from pipeline.stages.declarations import DECODE_VIDEO\n"
        "DECODE_VIDEO.load()\n"
        "print('torch' in sys.modules, 'ray.data' in sys.modules)"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=120, check=True
    )
    assert done.stdout.split() == ["False", "False"]
