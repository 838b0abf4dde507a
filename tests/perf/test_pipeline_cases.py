"""The parts of the pipeline's benchmarks that could be wrong without a word."""

import sys
from dataclasses import replace
from pathlib import Path

import pyarrow as pa
import pytest

sys.path.insert(0, str(Path(__file__).parent))
from pipeline_cases import (
    ONE_CELL,
    execute,
    execute_in_turn,
    make_plan,
    vision_ms,
)


@pytest.fixture(scope="module")
def precomputed(tmp_path_factory):
    """Two clips, three compressors, in a loop."""
    clips, cache = (tmp_path_factory.mktemp(name) for name in ("clips", "cache"))
    methods = [*ONE_CELL, {"name": "uniform", "retention": [0.1, 0.2]}]
    plan, settings = make_plan(clips, cache, 2, answer=False, executor="local", methods=methods)
    return plan, settings, execute(plan, settings)


def test_vision_side_counts_a_decode_and_an_encode_once_and_every_compression(precomputed):
    plan, _, run = precomputed
    times = vision_ms(plan)
    assert set(times) == {row.video_id for row in run.rows}
    per_cache = [vision_ms(replace(plan, caches={n: c})) for n, c in plan.caches.items()]
    assert len(per_cache) == 3
    for row in run.rows:
        found = times[row.video_id]
        assert (found["decode"], found["encode"]) == (row.decode_video_ms, row.encode_ms)
        alone = [cache[row.video_id]["compress"] for cache in per_cache]
        assert found["compress"] == pytest.approx(sum(alone))
        assert min(alone) > 0


def test_a_clip_that_fails_is_no_measurement(precomputed, tmp_path):
    plan, settings, _ = precomputed
    gone = pa.array([str(tmp_path / "gone.mp4")] * plan.clips.num_rows)
    index = plan.clips.column_names.index("path")
    with pytest.raises(RuntimeError, match=r"gone\.mp4"):
        execute(replace(plan, clips=plan.clips.set_column(index, "path", gone)), settings)


def test_plans_that_take_turns_have_clocks_of_their_own(tmp_path):
    recipe = {"answer": False, "executor": "local", "methods": ONE_CELL}
    plans = [make_plan(tmp_path, tmp_path / name, n, **recipe) for name, n in (("a", 1), ("b", 3))]
    runs = execute_in_turn(plans)
    assert [len(run.rows) for run in runs] == [1, 3]
    for (plan, _), run in zip(plans, runs, strict=True):
        assert [row.video_id for row in run.rows] == plan.clips["video_id"].to_pylist()
        busy = sum(sum(clip.values()) for clip in vision_ms(plan).values()) / 1e3
        assert busy < run.arrived_s[-1]
        assert sorted(run.arrived_s) == [*run.arrived_s]
