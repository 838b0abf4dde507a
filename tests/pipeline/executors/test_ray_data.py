"""The stages as Ray Data sees them: which run as tasks, which as actors, and in which order."""

from __future__ import annotations

from dataclasses import replace

import pytest
from jobs_for_tests import job, plan_of, run

from pipeline.clips import DECODE_VIDEO, Pools
from pipeline.resources.pools import ActorPool, TaskPool
from pipeline.rows import clips_in, packed, unpacked
from pipeline.settings import Settings

pytestmark = pytest.mark.ray


@pytest.fixture(scope="module")
def plans(tmp_path_factory):
    """Plans over two clips of which none, one and all are in the cache."""
    shapes, root = tmp_path_factory.mktemp("shapes"), tmp_path_factory.mktemp("cache")
    plans = {"cold": plan_of(job(shapes, limit=2), root)}
    (cache,) = plans["cold"].caches.values()
    for name, key in zip(("mixed", "warm"), plans["cold"].clips["clip_key"], strict=True):
        cache.storage.write(f"{key}.parquet", b"an entry")
        plans[name] = plan_of(job(shapes, limit=2), root)
    plans["fill"] = plan_of(job(shapes, limit=3), root, answer=False)
    return plans


def built(plan, pools=None):
    from pipeline.executors import ray_data

    return ray_data.build(plan, Settings(pools=pools or Pools()), ledger=None)


STAGES = ("decode_video", "CompressVideo", "AnswerQuestions")


@pytest.mark.parametrize(
    ("name", "expected"),
    [("cold", STAGES), ("mixed", STAGES), ("warm", STAGES[2:]), ("fill", STAGES[:2])],
)
def test_a_plan_has_the_stages_that_its_clips_need(plans, local_ray, name, expected):
    shown = str(built(plans[name]))
    assert tuple(stage for stage in STAGES if f"MapBatches({stage})" in shown) == expected
    assert ("Union" in shown) == (name in ("mixed", "fill"))


def test_pools_are_those_of_the_settings(plans, local_ray):
    pools = Pools(TaskPool(0.5), ActorPool(2, num_cpus=0.25), ActorPool(3, num_cpus=0.125))
    operator, found = built(plans["cold"], pools)._logical_plan.dag, {}
    while operator.input_dependencies:
        size = getattr(operator.compute, "max_size", None)
        found[operator.name] = (operator.ray_remote_args["num_cpus"], size)
        (operator,) = operator.input_dependencies
    assert found == {
        "MapBatches(decode_video)": (0.5, None),
        "MapBatches(CompressVideo)": (0.25, 2),
        "MapBatches(AnswerQuestions)": (0.125, 3),
    }


def batch_sizes(dataset):
    """Rows that the workers of every stage get at once."""
    operator, found = dataset._logical_plan.dag, {}
    while operator.input_dependencies:
        if operator.name.startswith("MapBatches("):
            found[operator.name[11:-1]] = operator.batch_size
        operator = operator.input_dependencies[0]
    return found


@pytest.mark.parametrize(
    ("clips", "actors", "expected"), [(1, 1, 1), (40, 2, 5), (200, 2, 25), (1000, 1, 64)]
)
def test_hits_are_answered_in_large_batches(plans, local_ray, clips, actors, expected):
    """On several actors all of them get some."""
    import pyarrow as pa

    rows = plans["warm"].clips.slice(0, 1)
    plan = replace(plans["warm"], clips=pa.concat_tables([rows] * clips))
    dataset = built(plan, Pools(answer=ActorPool(actors)))
    assert batch_sizes(dataset) == {"AnswerQuestions": expected}


def test_a_stage_on_blocks_gives_a_row_of_its_schema_for_each_row(plans, local_ray):
    from pipeline.executors.workers import task

    plan = plans["cold"]
    on_block = task(DECODE_VIDEO)
    assert on_block.__name__ == "decode_video"
    clips = packed(clips_in(plan.clips.slice(0, 1)))
    (done,) = unpacked(on_block(clips, **DECODE_VIDEO.arguments(plan, Settings())))
    assert (done.status, done.frames is None) == ("ok", False)


def test_the_reason_of_a_failed_worker_is_the_line_that_it_raised():
    from ray.exceptions import RayError

    from pipeline.executors import ray_data

    trace = (
        "ray::Map() (pid=1)\n  File 'a.py'\n"
        "tango_core.video.DecoderUnavailableError: torchcodec is not installed\n"
        "ray.exceptions.UserCodeException: failed"
    )
    reason = "DecoderUnavailableError: torchcodec is not installed"
    assert ray_data._reason(RayError(trace)) == reason
    assert ray_data._reason(RayError("first\nlast line")) == "last line"


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_a_job_whose_pools_are_chosen_and_grow_answers_everything(tmp_path, local_ray):
    cold = job(tmp_path / "shapes", limit=3, pools="auto")
    chosen, _ = run(cold, tmp_path / "chosen")
    growing = job(tmp_path / "shapes", limit=3, pools={"answer": {"num_actors": [1, 2]}})
    grown, _ = run(growing, tmp_path / "grown")
    for result in (chosen, grown):
        assert (result.num_clips, result.num_failed_clips, result.num_missing) == (3, 0, 0)
