"""The pipeline on Ray and locally: equal results, no repeated work, methods of users."""

from __future__ import annotations

import importlib

import pandas as pd
import pytest
from jobs_for_tests import answers_of, job, plan_of, run, what_was_said
from methods_as_files import own_method

from pipeline.clips import Pools
from pipeline.resources.pools import ActorPool, TaskPool
from pipeline.settings import Settings

FIVE = [
    {"name": "full"},
    {"name": "random", "retention": 0.2},
    {"name": "uniform", "retention": 0.2},
    {"name": "topk", "retention": 0.2},
    {"name": "tango", "retention": 0.2},
]

pytestmark = pytest.mark.ray


@pytest.fixture(scope="module")
def sweeps(shapes, tmp_path_factory, local_ray):
    """The same five methods on Ray twice, with one cache, and in a loop with a cache of its own."""
    on_ray, in_a_loop = (tmp_path_factory.mktemp(name) for name in ("ray", "local"))
    recipe = {"methods": FIVE, "limit": 6}
    return {
        "cold": run(job(shapes, **recipe), on_ray),
        "warm": run(job(shapes, **recipe), on_ray),
        "local": run(job(shapes, executor="local", **recipe), in_a_loop),
    }


def test_every_clip_is_decoded_and_encoded_once_for_all_methods(sweeps):
    outcome, _ = sweeps["cold"]
    assert (outcome.num_clips, outcome.num_decoded, outcome.num_encoded) == (6, 6, 6)
    assert (outcome.num_computed, outcome.num_hits) == (30, 0)


def test_a_second_run_uses_the_cache_and_gives_the_same_answers(sweeps):
    outcome, run_dir = sweeps["warm"]
    assert (outcome.num_decoded, outcome.num_encoded, outcome.num_computed) == (0, 0, 0)
    assert outcome.num_hits == 30
    pd.testing.assert_frame_equal(what_was_said(run_dir), what_was_said(sweeps["cold"][1]))
    assert set(answers_of(run_dir)["cache"]) == {"hit"}


def test_ray_and_local_execution_give_identical_answers(sweeps):
    pd.testing.assert_frame_equal(
        what_was_said(sweeps["local"][1]), what_was_said(sweeps["cold"][1])
    )


def test_every_question_appears_once_per_method(sweeps):
    answers = answers_of(sweeps["cold"][1])
    keys = ["benchmark", "video_id", "question_id", "cell"]
    assert not answers.duplicated(keys).any()
    per_method = answers.groupby("cell")["question_id"].nunique()
    assert len(per_method) == 5
    assert per_method.nunique() == 1
    assert set(answers["status"]) <= {"ok", "unparsed"}


@pytest.mark.slow
def test_decoding_is_not_fused_into_model_actors(shapes, tmp_path, local_ray):
    """With pools that reserve the same CPUs everywhere: the case in which Ray would fuse."""
    from pipeline.executors import ray_data

    plan = plan_of(job(shapes, limit=2), tmp_path)
    pools = Pools(TaskPool(1), ActorPool(num_cpus=1), ActorPool(num_cpus=1))
    stages = ray_data.build(plan, Settings(pools=pools), ray_data.start_ledger())
    operators = stages.materialize().stats()
    for name in ("decode_video", "CompressVideo", "AnswerQuestions"):
        assert f"MapBatches({name})" in operators
    assert "->MapBatches" not in operators, "a fused stage would decode inside the GPU actor"


@pytest.mark.slow
def test_a_job_with_several_batches_of_clips(shapes, tmp_path, local_ray, monkeypatch):
    """As of a million clips: a cluster is handed so many at a time; here four, hits and misses."""
    from pipeline.executors import ray_data

    monkeypatch.setattr(ray_data, "_MAX_CLIPS_AT_ONCE", 4)
    run(job(shapes, executor="local", limit=3), tmp_path)
    outcome, run_dir = run(job(shapes, limit=9), tmp_path)
    assert (outcome.num_clips, outcome.num_decoded, outcome.num_failed_clips) == (9, 6, 0)
    answers = answers_of(run_dir)
    assert answers["video_id"].nunique() == 9
    assert not answers.duplicated(["video_id", "question_id"]).any()


def test_only_an_added_method_is_computed(shapes, tmp_path):
    small = job(shapes, executor="local", methods=FIVE[:2], limit=2)
    run(small, tmp_path)
    outcome, _ = run(job(shapes, executor="local", methods=FIVE[:3], limit=2), tmp_path)
    assert (outcome.num_encoded, outcome.num_computed, outcome.num_hits) == (2, 2, 4)


METHOD = own_method(
    "FirstOnes", imports="from first_helper import first", first="assert first(1) == [0]\n"
)
HELPER = "def first(count):\n    return list(range(count))\n"


def test_workers_run_a_method_imported_by_the_driver(tmp_path, local_ray, monkeypatch):
    (tmp_path / "code").mkdir()
    (tmp_path / "code" / "first_method.py").write_text(METHOD)
    (tmp_path / "code" / "first_helper.py").write_text(HELPER)
    monkeypatch.syspath_prepend(str(tmp_path / "code"))
    importlib.invalidate_caches()
    recipe = {"methods": [{"name": "first_method:FirstOnes", "retention": 0.2}], "limit": 2}
    shapes = tmp_path / "shapes"
    outcome, run_dir = run(job(shapes, **recipe), tmp_path / "ray")
    assert (outcome.num_failed_clips, outcome.num_computed) == (0, 2)
    _, in_a_loop = run(job(shapes, executor="local", **recipe), tmp_path / "local")
    pd.testing.assert_frame_equal(what_was_said(run_dir), what_was_said(in_a_loop))
    answers = answers_of(run_dir)
    assert set(answers["cell"]) == {"FirstOnes r=0.2"}
    assert set(answers["method"]) == {"FirstOnes"}
    assert run_dir.name.endswith("-shapes-tiny-FirstOnes-r0.2")
    (cache,) = (tmp_path / "ray" / "cache").glob("*firstones*")
    assert cache.name.startswith("tiny-8f-firstones-r0.2-")
