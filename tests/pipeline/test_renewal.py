"""Features that were encoded again with other bits: older plans are computed again, in one job."""

from __future__ import annotations

from dataclasses import dataclass

import pyarrow as pa
import pytest
import torch
from encoded_again import TOPK, UNIFORM, encoded_elsewhere, evaluated, folders_of

from pipeline.cache.names import PLAN, TOKENS, entry_name, file_of, is_entry_file, split
from pipeline.renewal import RENEWALS, renewed
from pipeline.rows import CLIP, clip_row, to_table
from tango_core import build_method
from tango_core.types import VideoItem


@pytest.fixture(scope="module")
def shapes(tmp_path_factory):
    return tmp_path_factory.mktemp("shapes")


def test_plans_for_other_tokens_are_computed_again_from_stored_features(shapes, tmp_path):
    first, _ = evaluated(shapes, tmp_path, UNIFORM)
    (before,) = folders_of(tmp_path, of_features=False)
    keys = encoded_elsewhere(tmp_path)
    assert first.num_encoded == len(keys)
    evaluated(shapes, tmp_path, TOPK)
    again, answers = evaluated(shapes, tmp_path, UNIFORM, TOPK)
    assert set(answers["status"]) == {"ok"}
    assert (again.num_decoded, again.num_encoded, again.num_failed_clips) == (0, 0, 0)
    assert again.num_computed == len(keys)  # what is good of the other method is left alone
    cache = before.cache
    for key in keys:
        held = cache.features.opened(key).features(frozenset())
        wanted = build_method(**UNIFORM).compressor.compress(held)
        assert torch.equal(cache.read(key).video.tokens, wanted.tokens)
    last, answers = evaluated(shapes, tmp_path, UNIFORM, TOPK)
    assert (last.num_hits, last.num_computed) == (2 * len(keys), 0)
    assert set(answers["status"]) == {"ok"}


@pytest.mark.ray
@pytest.mark.slow
def test_they_are_computed_again_on_ray(shapes, tmp_path):
    evaluated(shapes, tmp_path, UNIFORM)
    keys = encoded_elsewhere(tmp_path)
    again, answers = evaluated(shapes, tmp_path, UNIFORM, executor="ray")
    assert set(answers["status"]) == {"ok"}
    assert (again.num_decoded, again.num_computed) == (0, len(keys))


def test_all_methods_of_a_clip_are_computed_in_one_round(shapes, tmp_path):
    methods = [{**UNIFORM, "retention": share} for share in (0.125, 0.25, 0.5, 0.75, 0.875)]
    evaluated(shapes, tmp_path, *methods)
    keys = encoded_elsewhere(tmp_path)
    result, answers = evaluated(shapes, tmp_path, *methods)
    assert set(answers["status"]) == {"ok"}
    assert result.num_computed == len(methods) * len(keys)


def test_signals_that_are_not_stored_are_encoded_for_them(shapes, tmp_path):
    evaluated(shapes, tmp_path, TOPK, stored="tokens")
    keys = encoded_elsewhere(tmp_path)
    result, answers = evaluated(shapes, tmp_path, TOPK, stored="tokens")
    assert set(answers["status"]) == {"ok"}
    assert (result.num_decoded, result.num_computed) == (len(keys), len(keys))


def test_a_job_without_the_store_computes_them_too(shapes, tmp_path):
    evaluated(shapes, tmp_path, UNIFORM)
    encoded_elsewhere(tmp_path)
    _, answers = evaluated(shapes, tmp_path, UNIFORM, stored="none")
    assert set(answers["status"]) == {"ok"}


def test_damaged_features_under_a_plan_are_encoded_again_in_the_same_job(shapes, tmp_path):
    evaluated(shapes, tmp_path, UNIFORM)
    (folder,) = folders_of(tmp_path, of_features=True)
    (key, *_) = sorted(folder.cache.parts()[TOKENS])
    path = folder.cache.storage.path(file_of(key))
    with open(path, "r+b") as file:
        held = bytearray(file.read())
        held[1000:200_000:500] = bytes(value ^ 1 for value in held[1000:200_000:500])
        file.seek(0)
        file.write(held)
    result, answers = evaluated(shapes, tmp_path, UNIFORM)
    assert set(answers["status"]) == {"ok"}
    assert result.num_encoded == 1


def test_tokens_beside_an_outdated_plan_are_used(shapes, tmp_path):
    evaluated(shapes, tmp_path, UNIFORM)
    (folder,) = folders_of(tmp_path, of_features=False)
    for location in folder.locations:  # materialized, and the plans are left
        stored = folder.read(location)
        folder.cache.write(stored.clip, stored.entry)
    encoded_elsewhere(tmp_path)
    result, answers = evaluated(shapes, tmp_path, UNIFORM)
    assert set(answers["status"]) == {"ok"}
    assert result.num_computed == 0
    names = [name for name in folder.storage.names() if is_entry_file(name)]
    assert {split(name.removesuffix(".parquet"))[1] for name in names} == {TOKENS}


def test_an_outdated_plan_is_dropped_and_a_good_one_stays(shapes, tmp_path):
    evaluated(shapes, tmp_path, UNIFORM)
    (folder,) = folders_of(tmp_path, of_features=False)
    (key, *_) = sorted(folder.cache.keys())
    folder.cache.drop_outdated(key)
    assert folder.cache.storage.exists(file_of(entry_name(key, PLAN)))
    encoded_elsewhere(tmp_path)
    folder.cache.drop_outdated(key)
    assert not folder.cache.storage.exists(file_of(entry_name(key, PLAN)))


@dataclass(frozen=True)
class SmallPlan:
    """A plan whose clips nobody looks into."""

    clips: pa.Table
    caches: dict
    compressors: dict
    features: None = None


def test_a_clip_that_is_outdated_each_time_is_given_up():
    items = [VideoItem(name, f"/{name}.mp4") for name in ("v0", "v1")]
    clips = to_table((clip_row("b", item, item.video_id, "") for item in items), CLIP)
    asked = []

    def attempt(plan):
        for video in plan.clips["video_id"].to_pylist():
            asked.append(video)
            yield {"benchmark": "b", "video_id": video, "outdated": video == "v1"}

    rows = list(renewed(attempt, SmallPlan(clips, {}, {})))
    assert [(row["video_id"], row["outdated"]) for row in rows] == [("v0", False), ("v1", True)]
    assert asked == ["v0", "v1"] + ["v1"] * RENEWALS
