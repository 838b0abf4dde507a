"""Real `tango` sweeps on a cluster of which one node is lost while both are at work."""

from __future__ import annotations

import json
import time
from collections import Counter
from contextlib import contextmanager

import pyarrow.parquet as pq
import pytest
from cluster_keeper import RECIPE, cluster
from stopped_runs import NOTHING, complete, difference, num_cached, run_of, tango, write_recipe

from pipeline.progress.parts import ANSWER_KEY

CLIPS, CELLS = 16, 2
SWEEP = ("sweep", "recipe.yaml", "--limit", CLIPS)
LOOP = ("--set", "executor=local")
# A node may take minutes to start on a busy machine.
WAIT_S, WAIT_IN_VAIN_S = 300, 10
FEW = 2
# So that clips are left to encode when a node goes, however quick the machine is: once a few token
# sets are there it waits until the file that names the place of its job is gone.
PATIENT = """
import time
from dataclasses import dataclass
from pathlib import Path

import torch

from tango_core.compressors.base import Compressor, num_kept, select


@dataclass(frozen=True)
class Patient(Compressor):
    def __post_init__(self):
        super().__post_init__()

    def _compress(self, features):
        while self._has_to_wait():
            time.sleep(0.05)
        total = features.tokens.shape[0] * features.tokens.shape[1]
        return select(features, torch.arange(num_kept(total, self.retention)))

    def _has_to_wait(self):
        try:
            output = Path({held!r}).read_text()
        except FileNotFoundError:
            return False
        return len(list(Path(output).glob("cache/*/*.parquet"))) >= {few}
"""
HELD = "held"
STAGE_OF = {"encode": "CompressVideo", "answer": "AnswerQuestions"}

pytestmark = [pytest.mark.slow, pytest.mark.ray, pytest.mark.timeout(1200)]


@pytest.fixture(scope="module")
def work(tmp_path_factory):
    folder = tmp_path_factory.mktemp("nodes")
    code = PATIENT.format(held=str(folder / HELD), few=FEW)
    (folder / "patient.py").write_text(code)
    methods = [{"name": "full"}, {"name": "patient:Patient", "retention": 0.2}]
    limits = {"lost_timeout_s": WAIT_S}
    write_recipe(folder, folder / "shapes", methods=methods, **RECIPE, cluster=limits)
    return folder


@pytest.fixture(scope="module")
def whole(work):
    """The run that nobody disturbs."""
    done = complete(*SWEEP, *LOOP, cwd=work, output=work / "whole")
    assert done.process.returncode == 0, done.text()
    return run_of(done.output)


@pytest.fixture(scope="module")
def nodes():
    """A head, a node for the encoder and one for the language model."""
    with cluster("encode", "answer") as (keeper, _):
        yield keeper


@contextmanager
def held(work, output):
    """The directory for a job that stands still with a few token sets until it loses a node."""
    file = work / HELD
    file.write_text(str(output))
    try:
        yield output
    finally:
        file.unlink(missing_ok=True)


def lose(node, nodes, job, work):
    """End a node when the first token sets are there and before the last one is: when it was."""
    job.wait_until(lambda: num_cached(job.output) >= FEW)
    before = time.monotonic()
    nodes.remove(node)
    (work / HELD).unlink()
    if node == "encode":
        assert num_cached(job.output) < CLIPS * CELLS, "it was lost too late to prove anything"
    assert job.process.poll() is None, job.text()
    return before


def check_all_is_there(output, whole):
    """Every answer once on the disk and in the summary, as in the run that nobody disturbed."""
    run = run_of(output)
    assert difference(run, whole) == NOTHING
    parts = [
        pq.read_table(part, columns=list(ANSWER_KEY)) for part in run.glob("answers/*.parquet")
    ]
    names = Counter(tuple(row.values()) for part in parts for row in part.to_pylist())
    assert set(names.values()) == {1}
    found, expected = (json.loads((path / "summary.json").read_text()) for path in (run, whole))
    assert found["num_questions"] == expected["num_questions"] == len(names)
    assert num_cached(output) == CLIPS * CELLS


@pytest.mark.parametrize("node", ["encode", "answer"])
def test_a_lost_node_is_replaced_and_nothing_is_lost_or_doubled(node, work, whole, nodes, tmp_path):
    with (
        held(work, tmp_path / "runs") as output,
        tango(*SWEEP, "--address", nodes.address, cwd=work, output=output) as job,
    ):
        lose(node, nodes, job, work)
        another = nodes.add(node)
        assert job.process.wait(400) == 0, job.text()
    assert "Traceback" not in job.text()
    actors = [actor for actor in nodes.actors() if STAGE_OF[node] in actor[0]]
    assert another in [actor[1] for actor in actors], "the stage went on elsewhere"
    check_all_is_there(output, whole)


def test_a_lost_node_that_is_not_replaced_ends_the_job_in_one_line(work, whole, nodes, tmp_path):
    limit = f"cluster.lost_timeout_s={WAIT_IN_VAIN_S}"
    with (
        held(work, tmp_path / "runs") as output,
        tango(*SWEEP, "--address", nodes.address, "--set", limit, cwd=work, output=output) as job,
    ):
        try:
            started = lose("answer", nodes, job, work)
            said = len(job.text().splitlines())
            assert job.process.wait(400) == 2, job.text()
            ended_s = time.monotonic() - started
        finally:
            nodes.add("answer")
    last = job.last_line()
    assert f"none came in its place within cluster.lost_timeout_s = {WAIT_IN_VAIN_S} s" in last
    assert "pools.answer" in last
    assert "Traceback" not in job.text()
    after = [line for line in job.text().splitlines()[said:] if "clips, encoded" not in line]
    assert after[-1] == last
    assert len(after) <= 2, "\n".join(after)
    assert ended_s >= WAIT_IN_VAIN_S
    resumed = complete(*SWEEP, "--resume", run_of(output), *LOOP, cwd=work, output=output)
    assert resumed.process.returncode == 0, resumed.text()
    check_all_is_there(output, whole)
