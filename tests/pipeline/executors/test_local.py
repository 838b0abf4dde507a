"""The loop takes every clip through the stages it needs, and loads no model that it does not."""

from __future__ import annotations

import gc
import shutil
import threading
import time
from functools import partial
from types import SimpleNamespace

import pyarrow as pa
import pytest
from fresh_python import printed_by
from jobs_for_tests import job, plan_of

from pipeline.clips import Stage
from pipeline.errors import DeviceError, WorkerError
from pipeline.executors import local
from pipeline.metrics import JobBoard
from pipeline.runtime import background
from pipeline.settings import Settings

SETTINGS = Settings("local")


@pytest.fixture(scope="module")
def shapes(tmp_path_factory):
    return tmp_path_factory.mktemp("shapes")


@pytest.fixture(scope="module")
def filled(shapes, tmp_path_factory):
    """Two clips in the cache, and the results of putting them there."""
    cache = tmp_path_factory.mktemp("cache")
    plan = plan_of(job(shapes, limit=2), cache, answer=False)
    for tokens in plan.caches.values():
        tokens.prepare()
    return cache, plan, list(local.stream(plan, SETTINGS))


@pytest.fixture
def loaded(monkeypatch):
    """Names of the stages that were started."""
    names = []
    start = Stage.start

    def noted(stage, plan, settings):
        names.append(stage.name)
        return start(stage, plan, settings)

    monkeypatch.setattr(Stage, "start", noted)
    return names


def test_clips_in_the_cache_load_the_language_model_alone(filled, shapes, loaded):
    plan = plan_of(job(shapes, limit=2), filled[0])
    results = list(local.stream(plan, SETTINGS))
    assert loaded == ["answer"]
    assert [row.decode_video_ms for row in results] == [None, None]
    assert {answer.cache for row in results for answer in row.answers} == {"hit"}


def test_hits_and_misses_come_in_the_order_of_the_plan(filled, shapes, loaded, tmp_path):
    cache = shutil.copytree(filled[0], tmp_path / "cache")
    plan = plan_of(job(shapes, limit=3), cache)
    results = list(local.stream(plan, SETTINGS))
    assert [row.video_id for row in results] == plan.clips["video_id"].to_pylist()
    assert [row.num_misses for row in results] == [0, 0, 1]
    assert loaded == ["answer", "decode", "compress"]


def test_a_loop_never_imports_ray():
    code = (
        "import sys, pipeline.run, jobs.run.driver\n"
        "from pipeline.clips import STAGES\n"
        "[stage.load(profile=profile) for stage in STAGES for profile in (False, True)]\n"
        "print('ray' in sys.modules)"
    )
    assert printed_by(code) == "False"


class Steps:
    """Three stages for clips that are only numbers: each notes its work and may be held up.

    Args:
        before: (stage, clip) -> called before that work.
    """

    def __init__(self, before):
        self.before, self.done = before, []

    def stages(self, plan):
        return tuple(
            SimpleNamespace(
                name=name,
                on_hits=name == "answer",
                takes=lambda row: True,
                start=lambda plan, settings, name=name: partial(self.work, name),
            )
            for name in ("decode", "compress", "answer")
        )

    def work(self, name, row):
        self.before.get((name, row.video_id), lambda: None)()
        self.done.append((name, row.video_id))
        return row


class Board(JobBoard):
    def plan(self, plan):
        """Of numbers there is no plan."""


@pytest.fixture
def steps(monkeypatch):
    """`steps(before)` gives the stages that a stream of five clips goes through, and the stream."""

    def started(before):
        found = Steps(before)
        monkeypatch.setattr(local, "stages_of", found.stages)
        clips = [{"benchmark": "b", "video_id": f"{at}", "status": "ok"} for at in range(5)]
        plan = SimpleNamespace(answer=True, clips=pa.Table.from_pylist(clips))
        return found, local.stream(plan, SETTINGS, Board())

    return started


def test_the_next_clip_is_decoded_while_one_is_in_work_and_no_other(steps):
    decoded, beside = threading.Event(), []

    def wait():
        beside.append(decoded.wait(60))

    found, stream = steps({("decode", "1"): decoded.set, ("compress", "0"): wait})
    assert next(stream).video_id == "0"
    assert beside == [True]
    stream.close()
    assert {("decode", "3"), ("decode", "4")}.isdisjoint(found.done)


def test_after_an_error_nothing_is_decoded_any_more(steps):
    def fail():
        raise DeviceError("the GPU is lost")

    found, stream = steps({("answer", "1"): fail})
    gc.disable()
    try:
        with pytest.raises(WorkerError, match="clip 1 of b"):
            list(stream)
        deadline = time.monotonic() + 60
        while background.is_busy() and time.monotonic() < deadline:
            time.sleep(0.01)
        assert not background.is_busy()
    finally:
        gc.enable()
    assert ("decode", "4") not in found.done
