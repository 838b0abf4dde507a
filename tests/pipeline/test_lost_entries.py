"""Cache entries that are removed or damaged after the plan: computed again in the same job."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import pyarrow as pa
import pytest
from jobs_for_tests import answers_of, job, plan_of, run, what_was_said

from pipeline.cache.folders import compact_cache, find_caches
from pipeline.cache.names import TOKENS, file_of
from pipeline.clips import clip_of
from pipeline.rows import CLIP, Result, to_table
from pipeline.run import MOST_REPEATS, complete
from pipeline.run import run as run_plan
from pipeline.settings import Settings
from tango_core.types import VideoItem

UNIFORM = {"name": "uniform", "retention": 0.25}
TOPK = {"name": "topk", "retention": 0.25}


@pytest.fixture(scope="module")
def shapes(tmp_path_factory):
    return tmp_path_factory.mktemp("shapes")


def feature_files(output):
    (folder,) = (one for one in find_caches(output / "cache") if one.holds_features)
    keys = sorted(folder.cache.parts()[TOKENS])
    return [Path(folder.cache.storage.path(file_of(key))) for key in keys]


def damage(path, step=500):
    held = bytearray(path.read_bytes())
    held[1000:-6000:step] = bytes(value ^ 1 for value in held[1000:-6000:step])
    path.write_bytes(held)


@pytest.mark.parametrize("in_shard", [False, True])
def test_damaged_token_sets_are_computed_again_in_the_same_job(shapes, tmp_path, in_shard):
    recipe = job(shapes, executor="local", methods=[UNIFORM, TOPK])
    _, first_dir = run(recipe, tmp_path)
    for folder in find_caches(tmp_path / "cache"):
        if in_shard:
            assert not [problem for _, problem in compact_cache(folder) if problem]
        damage(sorted(Path(folder.storage.root).glob("*.parquet"))[0], step=5_000)
    caches = find_caches(tmp_path / "cache")
    assert len({tuple(sorted(one.key for one in folder.locations)) for folder in caches}) == 1
    again, again_dir = run(recipe, tmp_path)
    assert set(answers_of(again_dir).status) == {"ok"}
    assert again.num_encoded == again.num_computed // 2, "both methods of a clip in one round"
    assert what_was_said(again_dir).equals(what_was_said(first_dir))


def test_damaged_features_are_encoded_again_in_the_same_job(shapes, tmp_path):
    recipe = job(shapes, executor="local", methods=[UNIFORM, TOPK], cache={"features": "all"})
    first, first_dir = run(recipe, tmp_path)
    damage(feature_files(tmp_path)[0])
    again, again_dir = run(recipe, tmp_path)
    assert set(answers_of(again_dir).status) == {"ok"}
    assert (first.num_encoded, again.num_encoded) == (first.num_clips, 1)
    assert what_was_said(again_dir).equals(what_was_said(first_dir))


@pytest.mark.parametrize("features", ["all", "none"])
def test_entries_that_were_removed_after_the_plan_are_computed_again(shapes, tmp_path, features):
    recipe = job(shapes, executor="local", methods=[UNIFORM], cache={"features": features})
    run(recipe, tmp_path)
    plan = plan_of(recipe, tmp_path / "cache")
    for folder in find_caches(tmp_path / "cache"):
        for file in folder.singles:
            folder.remove(file.name)
    attempts = []

    def attempt(left, settings):
        attempts.append(left.clips.num_rows)
        return run_plan(left, settings)

    results = list(complete(attempt, plan, Settings("local")))
    assert attempts == [4, 4]
    assert [row.encode_ms is not None for row in results] == [True] * 4
    assert {answer.status for row in results for answer in row.answers} == {"ok"}


@dataclass(frozen=True)
class SmallPlan:
    """A plan whose clips nobody looks into."""

    clips: pa.Table
    caches: dict
    compressors: dict
    features: None = None


def test_a_clip_that_loses_its_entries_each_time_is_given_up():
    items = [VideoItem(name, f"/{name}.mp4") for name in ("v0", "v1")]
    clips = to_table((clip_of("b", item, item.video_id, "") for item in items), CLIP)
    asked = []

    def attempt(plan, settings):
        for video in plan.clips["video_id"].to_pylist():
            asked.append(video)
            yield Result(benchmark="b", video_id=video, lost_entry=video == "v1")

    rows = list(complete(attempt, SmallPlan(clips, {}, {}), Settings("local")))
    assert [(row.video_id, row.lost_entry) for row in rows] == [("v0", False), ("v1", True)]
    assert asked == ["v0", "v1"] + ["v1"] * MOST_REPEATS
