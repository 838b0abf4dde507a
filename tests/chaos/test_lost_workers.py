"""Workers that die: Ray repeats what they were doing, and a clip that kills them ends as a row."""

from __future__ import annotations

import math
import os
import signal
import sys
from collections import Counter
from dataclasses import dataclass, replace
from typing import Any

import psutil
import pytest
import ray
import torch
from jobs_for_tests import job, plan_of

from pipeline.errors import WorkerError
from pipeline.plan import Plan
from pipeline.rows import Result, clips_in
from pipeline.run import run as run_plan
from pipeline.settings import Settings
from tango_core import decode_frames, load_encoder
from tango_core.compressors.baselines import Full
from tango_core.types import CompressedVideo, VisualFeatures

pytestmark = [pytest.mark.ray, pytest.mark.timeout(600)]


CLIPS = 16


@pytest.fixture(scope="module")
def shapes(tmp_path_factory):
    return tmp_path_factory.mktemp("shapes")


def workers_titled(title: str) -> list[psutil.Process]:
    """Processes of this test's Ray by what Ray calls them."""
    found = []
    for process in psutil.Process().children(recursive=True):
        try:
            if any(title in part for part in process.cmdline()):
                found.append(process)
        except psutil.Error:
            continue
    return found


@pytest.mark.slow
def test_a_job_survives_the_loss_of_its_ledger(shapes, tmp_path, local_ray):
    plan = plan_of(job(shapes, limit=CLIPS), tmp_path / "cache")
    results: list[Result] = []
    killed = False
    for result in run_plan(plan, Settings()):
        results.append(result)
        if not killed:
            (ledger,) = workers_titled("JobLedger")
            os.kill(ledger.pid, signal.SIGKILL)
            killed = True
    assert Counter(r.video_id for r in results) == Counter(plan.clips["video_id"].to_pylist())
    assert {result.status for result in results} == {"ok"}


def test_a_stage_that_cannot_run_ends_the_job_with_its_own_reason(shapes, tmp_path, local_ray):
    plan = plan_of(job(shapes, limit=2), tmp_path / "cache")
    frames = replace(plan.model.frames, decoder="torchcodec")
    plan = replace(plan, model=replace(plan.model, frames=frames))
    with pytest.raises(WorkerError, match="torchcodec") as error:
        list(run_plan(plan, Settings()))
    assert "\n" not in str(error.value)


TOLERANCE = 1e-3
POISONED = "TANGO_TEST_POISONED"
ASSERT = "CUDA error: device-side assert triggered"


def token_sum(features: VisualFeatures) -> float:
    """A number that tells clips apart."""
    return float(features.tokens.double().sum())


@dataclass(frozen=True)
class Deadly(Full):
    """`Full`, except that one clip ends its worker.

    Attributes:
        victim: Sum of that clip's tokens; another process may round it differently.
        seen: File whose lines are the processes that the clip was in.
        harmless_after: With this many of them it does nothing more.
        poisons: Whether it poisons the GPU of its process, so that every later call fails; else
            the process is killed, as by the kernel's out-of-memory killer.
    """

    victim: float = 0.0
    seen: str = ""
    harmless_after: int = 10**6
    poisons: bool = False

    def compress(self, features: VisualFeatures) -> CompressedVideo:
        """End the worker on one clip, keep everything of the others."""
        if os.environ.get(POISONED) == str(os.getpid()):
            raise torch.AcceleratorError(ASSERT)
        if math.isclose(token_sum(features), self.victim, rel_tol=TOLERANCE):
            with open(self.seen, "a+") as file:
                file.seek(0)
                if len(file.readlines()) >= self.harmless_after:
                    return super().compress(features)
                file.write(f"{os.getpid()}\n")
            if not self.poisons:
                os.kill(os.getpid(), signal.SIGKILL)
            os.environ[POISONED] = str(os.getpid())
            raise torch.AcceleratorError(ASSERT)
        return super().compress(features)

    def identity(self) -> dict[str, Any]:
        """The same cache as `Full`."""
        return Full().identity()


def with_a_deadly_clip(plan: Plan, index: int, **options: Any) -> Plan:
    """The same plan, in which clip `index` ends its encode worker."""
    encoder = load_encoder(plan.model)
    sums = [
        token_sum(encoder.encode(decode_frames(clip.path, plan.model.frames, clip.bounds)))
        for clip in clips_in(plan.clips)
    ]
    alike = [total for total in sums if math.isclose(total, sums[index], rel_tol=10 * TOLERANCE)]
    assert alike == [sums[index]], f"the clips cannot be told apart by their sums {sums}"
    return replace(
        plan, compressors=dict.fromkeys(plan.compressors, Deadly(victim=sums[index], **options))
    )


@pytest.mark.slow
@pytest.mark.parametrize(
    ("poisons", "harmless_after"), [(False, 1), (False, 10**6), (True, 1), (True, 10**6)]
)
def test_a_clip_that_ends_its_workers_costs_no_other_clip(
    shapes, tmp_path, local_ray, poisons, harmless_after
):
    """A poisoned GPU fails for ever, so only a new process can do the other clips."""
    ray.cloudpickle.register_pickle_by_value(sys.modules[__name__])
    seen = tmp_path / "processes"
    how = {"seen": str(seen), "harmless_after": harmless_after, "poisons": poisons}
    plan = with_a_deadly_clip(plan_of(job(shapes, limit=4), tmp_path / "cache"), 1, **how)
    found = list(run_plan(plan, Settings()))
    results = {result.video_id: result for result in found}
    assert sorted(r.video_id for r in found) == sorted(plan.clips["video_id"].to_pylist())
    questions = [answer.question_id for result in found for answer in result.answers]
    assert len(questions) == len(set(questions))
    done = [result for result in found if result.status == "ok"]
    assert all(r.decode_video_ms is not None and r.encode_ms is not None for r in done)
    assert [result.num_computed for result in done] == [1] * len(done), "each counts once"
    (cache,) = plan.caches.values()
    assert len(cache.keys()) == len(done)
    victim = results.pop(plan.clips["video_id"][1].as_py())
    assert [result.status for result in results.values()] == ["ok"] * 3
    processes = seen.read_text().split()
    assert len(processes) == len(set(processes)) == min(harmless_after, 3)
    assert victim.status == ("ok" if harmless_after == 1 else "encode_failed")
    assert {a.status for a in victim.answers} <= {victim.status, "unparsed"}
    if harmless_after > 1:
        last = f"on this clip; the last time because of {ASSERT}" if poisons else ""
        assert f"died 3 times {last}" in victim.error
