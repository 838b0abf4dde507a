"""Real `tango` sweeps that get a signal, or lose a node of their cluster, in mid-run."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import time
from contextlib import contextmanager
from pathlib import Path

import pytest
import yaml
from jobs_for_tests import answers_of
from methods_as_files import own_method
from ray_head import ROOT, started
from waiting import until

from pipeline.progress.parts import ANSWER_KEY
from pipeline.storage.leases import RELEASED

CLIPS, CELLS, FEW = 16, 2, 2
PATIENCE_S = 400.0
# A node may take minutes to start on a busy machine.
WAIT_S, WAIT_IN_VAIN_S = 300, 10
SWEEP = ("sweep", "recipe.yaml", "--limit", CLIPS)
LOOP = ("--set", "executor=local")
HELD = "held"
# So that clips are left when a node goes, however quick the machine is: once a few token sets are
# there it waits until the file that names the output of its job is gone.
PATIENT = own_method(
    "Patient",
    imports="import time\nfrom pathlib import Path",
    option='file: str = ""',
    first=f"""\
while True:
    try:
        output = Path(Path(self.file).read_text())
    except FileNotFoundError:
        break
    if len(list(output.glob("cache/*/*.parquet"))) < {FEW}:
        break
    time.sleep(0.05)
""",
)
# Encode and answer actors run on the nodes `encode` and `answer` alone; their GPUs are logical.
ON_NODES = {
    "decode": {"num_cpus": 0.5},
    "compress": {"num_gpus": 0.5, "resources": {"encode": 0.5}},
    "answer": {"num_gpus": 0.5, "resources": {"answer": 0.5}},
}

pytestmark = [pytest.mark.slow, pytest.mark.ray, pytest.mark.timeout(1200)]


class Tango:
    """A sweep in a process group of its own; its output goes to the file `log`."""

    def __init__(self, work: Path, output: Path, *arguments: object) -> None:
        self.output, self.log = output, work / f"{time.monotonic_ns()}.log"
        command = [sys.executable, "-m", "jobs.cli.entry", *map(str, arguments)]
        with self.log.open("wb") as file:
            self.process = subprocess.Popen(
                [*command, "--output", str(output)],
                cwd=work,
                env={**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"},
                stdin=subprocess.DEVNULL,
                stdout=file,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )

    def __enter__(self) -> Tango:
        return self

    def __exit__(self, *error: object) -> None:
        if self.process.poll() is None:
            os.killpg(self.process.pid, signal.SIGKILL)
            self.process.wait()

    def wait_for_token_sets(self) -> None:
        """Wait until the first token sets are in the caches."""
        deadline = time.monotonic() + PATIENCE_S
        while num_cached(self.output) < FEW:
            assert self.process.poll() is None, self.text()
            assert time.monotonic() < deadline, self.text()
            time.sleep(0.02)

    def ends(self, code: int) -> list[str]:
        """Wait for this exit code; the lines of the output without those of the progress."""
        assert self.process.wait(PATIENCE_S) == code, self.text()
        assert "Traceback" not in self.text()
        return [line for line in self.text().splitlines() if "clips, encoded" not in line]

    def text(self) -> str:
        """Its output so far."""
        return self.log.read_text(errors="replace")


def num_cached(output: Path) -> int:
    return len(list(output.glob("cache/*/*.parquet")))


def run_of(output: Path) -> Path:
    (found,) = [path.parent for path in output.glob("*/job.yaml")]
    return found


def check_all_is_there(output, whole):
    """Every answer once, as in the run that nobody disturbed."""
    said = [*ANSWER_KEY, "status", "text", "choice", "correct", "tokens_kept", "frames_digest"]
    found, expected = (answers_of(run)[said] for run in (run_of(output), whole))
    assert found.equals(expected)
    assert not found.duplicated(list(ANSWER_KEY)).any()
    assert num_cached(output) == CLIPS * CELLS


def check_resumes(work, output, whole):
    """A resume in a loop completes the run."""
    with Tango(work, output, *SWEEP, "--resume", run_of(output), *LOOP) as resumed:
        resumed.ends(0)
    check_all_is_there(output, whole)


@pytest.fixture(scope="module")
def work(tmp_path_factory):
    folder = tmp_path_factory.mktemp("stops")
    (folder / "patient.py").write_text(PATIENT)
    recipe = {
        "benchmark": {"name": "shapes", "root": str(folder / "shapes")},
        "model": {"name": "tiny", "num_frames": 4, "device": "cpu"},
        "methods": [
            {"name": "full"},
            {"name": "patient:Patient", "retention": 0.2, "file": str(folder / HELD)},
        ],
        "cluster": {"lost_timeout_s": WAIT_S},
    }
    (folder / "recipe.yaml").write_text(yaml.safe_dump(recipe))
    on_nodes = {**recipe, "pools": ON_NODES, "executor": "ray"}
    (folder / "on_nodes.yaml").write_text(yaml.safe_dump(on_nodes))
    return folder


@pytest.fixture(scope="module")
def whole(work):
    """The run that nobody disturbs."""
    with Tango(work, work / "whole", *SWEEP, *LOOP) as done:
        done.ends(0)
    return run_of(done.output)


def processes_of(session: int) -> list[str]:
    """Command lines of the living processes of a session."""
    done = subprocess.run(["ps", "-o", "stat=,args=", "-s", str(session)],
                          capture_output=True, text=True)  # fmt: skip
    return [line for line in done.stdout.splitlines() if line[:1] not in "ZX"]


@pytest.mark.parametrize("executor", ["local", "ray"])
def test_a_stopped_job_ends_in_one_line_and_loses_nothing(work, whole, tmp_path, executor):
    output = tmp_path / "runs"  # a second try finds no token sets of the first
    with Tango(work, output, *SWEEP, "--set", f"executor={executor}") as first:
        first.wait_for_token_sets()
        said = len(first.text().splitlines())
        # As a scheduler does on a cluster, to all processes.
        (os.killpg if executor == "ray" else os.kill)(first.process.pid, signal.SIGTERM)
        last = first.ends(128 + signal.SIGTERM)[-1]
        after = [line for line in first.text().splitlines()[said:] if "clips, encoded" not in line]
    assert after == [last]
    assert last.startswith("tango: stopped by SIGTERM; finished clips are kept, continue with: ")
    assert last.endswith(f"--resume {run_of(output)}")
    until(lambda: not processes_of(first.process.pid), "no processes", 120)
    left = [path.read_bytes() for path in run_of(output).glob(".lease*")]
    assert left == [RELEASED], "the lease is given back"
    check_resumes(work, output, whole)


def test_a_cluster_that_accepts_and_stays_silent_is_one_line(work):
    with socket.create_server(("127.0.0.1", 0)) as silent:
        address = f"127.0.0.1:{silent.getsockname()[1]}"
        limit = ("--set", "cluster.start_timeout_s=1")
        with Tango(work, work / "silent", *SWEEP, "--address", address, *limit) as job:
            last = job.ends(2)[-1]
    assert f"{address} accepted no driver within cluster.start_timeout_s = 1 s" in last


@pytest.fixture(scope="module")
def nodes():
    """A head, a node for the encoder and one for the language model."""
    with started("plain") as cluster:
        cluster.toggle("encode")
        cluster.toggle("answer")
        yield cluster


@contextmanager
def job_without(node, nodes, work, output, *arguments):
    """A job that has lost a node after the first token sets and before the last one."""
    sweep = ("sweep", "on_nodes.yaml", *SWEEP[2:], "--address", nodes.address, *arguments)
    held = work / HELD
    held.write_text(str(output))
    try:
        with Tango(work, output, *sweep) as job:
            job.wait_for_token_sets()
            nodes.toggle(node)
            held.unlink()
            if node == "encode":
                assert num_cached(output) < CLIPS * CELLS, "it was lost too late"
            assert job.process.poll() is None, job.text()
            yield job
    finally:
        held.unlink(missing_ok=True)


@pytest.mark.parametrize("node", ["encode", "answer"])
def test_a_lost_node_is_replaced_and_nothing_is_lost_or_doubled(node, work, whole, nodes, tmp_path):
    with job_without(node, nodes, work, tmp_path / "runs") as job:
        nodes.toggle(node)
        job.ends(0)
    check_all_is_there(job.output, whole)


def test_a_lost_node_that_is_not_replaced_ends_the_job_in_one_line(work, whole, nodes, tmp_path):
    limit = ("--set", f"cluster.lost_timeout_s={WAIT_IN_VAIN_S}")
    try:
        with job_without("answer", nodes, work, tmp_path / "runs", *limit) as job:
            last = job.ends(2)[-1]
    finally:
        nodes.toggle("answer")
    assert f"none came in its place within cluster.lost_timeout_s = {WAIT_IN_VAIN_S} s" in last
    assert "pools.answer" in last
    check_resumes(work, job.output, whole)
