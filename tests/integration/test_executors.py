"""The pipeline on Ray and locally: equal results, and no repeated work."""

from __future__ import annotations

import pandas as pd
import pytest
from jobs_for_tests import answers_of, job, plan_of, run, what_was_said

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
def shapes(tmp_path_factory):
    return tmp_path_factory.mktemp("shapes")


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
    from pipeline.executors import ray_data

    plan = plan_of(job(shapes, limit=2), tmp_path)
    pools = parse_equal_cpus()
    operators = (
        ray_data.build(plan, Settings(pools=pools), ray_data.start_ledger()).materialize().stats()
    )
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


def parse_equal_cpus():
    """Pools that reserve the same CPUs everywhere: the case in which Ray would fuse."""
    from pipeline.clips import Pools
    from pipeline.resources.pools import ActorPool, TaskPool

    return Pools(TaskPool(1), ActorPool(num_cpus=1), ActorPool(num_cpus=1))


def test_only_an_added_method_is_computed(shapes, tmp_path):
    small = job(shapes, executor="local", methods=FIVE[:2], limit=2)
    run(small, tmp_path)
    outcome, _ = run(job(shapes, executor="local", methods=FIVE[:3], limit=2), tmp_path)
    assert (outcome.num_encoded, outcome.num_computed, outcome.num_hits) == (2, 2, 4)
