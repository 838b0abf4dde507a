"""Token sets that are stored as plans: the same bytes as tokens, for as long as features are."""

from __future__ import annotations

import duckdb
import pytest
import torch
from filled_caches import files_of
from stored_features import add_plan, clip, features, filled, token_cache

from pipeline.cache.checks import check_clips, count_tokens
from pipeline.cache.compact import compact_cache
from pipeline.cache.dependents import dependents_of, materialise
from pipeline.cache.folders import find_caches
from pipeline.cache.names import PLAN, TOKENS
from pipeline.cache.rows import CacheError, Entry
from pipeline.cache.stored_features import FeaturesDamagedError
from tango_core import build_method

KEY = clip().key


def compressor_of(name):
    options = {} if name == "full" else {"retention": 0.25}
    return build_method(name, num_layers=8, **options).compressor


# One name of every method that runs before the language model; controls have options of their own.
PLANNING = (
    *("divprune", "evs", "fastvid", "flashvid", "full", "holitom", "prunevid", "random"),
    *("tango", "topk", "uniform", "vcast", "vidcom2", "visionzip"),
)


@pytest.fixture
def cache(tmp_path):
    filled(tmp_path, range(3))
    return token_cache(tmp_path)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("name", PLANNING)
def test_a_plan_gives_the_bytes_of_compress(tmp_path, name, dtype):
    filled(tmp_path, tokens=dtype)
    cache = token_cache(tmp_path)
    video = add_plan(cache, compressor_of(name), dtype=dtype)
    entry = cache.read(KEY)
    assert torch.equal(entry.video.tokens, video.tokens)
    assert entry.video.tokens.dtype == dtype
    assert torch.equal(entry.video.indices, video.indices)
    assert torch.equal(entry.video.timestamps, video.timestamps)
    assert (entry.video.grid, entry.video.source) == (video.grid, video.source)
    assert (entry.decode_video_ms, entry.encode_ms, entry.compress_ms) == (1.0, 2.0, 3.0)


def test_the_row_says_what_a_viewer_draws(cache):
    compressor = build_method("tango", retention=0.25).compressor
    plan = compressor.plan(features())
    add_plan(cache, compressor)
    (folder,) = find_caches(cache.root, ["tiny-own-*"])
    stored = folder.row(folder.locations[0]).entry.plan
    assert stored.drawing.segments == plan.drawing.segments
    assert torch.equal(stored.drawing.static, plan.drawing.static)
    assert torch.equal(stored.drawing.saliency, plan.drawing.saliency)
    assert torch.equal(stored.drawing.saliency_range, plan.drawing.saliency_range)
    query = f"select tokens, num_tokens_kept, shape from '{cache.storage.root}/*.parquet'"
    assert duckdb.sql(query).fetchall() == [(None, plan.num_kept, [plan.num_kept, 16])]


@pytest.mark.parametrize("compacted", [False, True])
def test_what_is_stored_is_read_without_features_a_plan_before_tokens(cache, compacted):
    compressor = compressor_of("uniform")
    add_plan(cache, compressor)
    for number in (0, 1):
        cache.write(clip(number), Entry(compressor.compress(features(number)), 1.0, 2.0, 3.0))
    if compacted:
        (folder,) = find_caches(cache.root, ["tiny-own-*"])
        assert not [why for _, why in compact_cache(folder) if why]
    cache.features.discard(KEY)
    wanted = compressor.plan(features()).indices
    assert torch.equal(cache.read_as_stored(KEY).entry.plan.indices, wanted)
    assert torch.equal(cache.read_as_stored(KEY, [TOKENS]).entry.video.indices, wanted)
    assert cache.read_as_stored(clip(1).key).entry.video.indices.tolist() == wanted.tolist()
    for key, parts in ((clip(1).key, [PLAN]), (clip(2).key, [PLAN, TOKENS])):
        with pytest.raises(FileNotFoundError):
            cache.read_as_stored(key, parts)


def test_a_plan_whose_features_have_gone_is_a_miss(cache):
    for number in range(2):
        add_plan(cache, compressor_of("uniform"), number)
    cache.write(clip(2), Entry(compressor_of("uniform").compress(features(2)), 1.0, 2.0, 3.0))
    assert cache.keys() == {clip(n).key for n in range(3)}
    for number in (0, 2):
        cache.features.discard(clip(number).key)
    assert cache.keys() == {clip(1).key, clip(2).key}
    with pytest.raises(CacheError, match="is a plan whose features have gone"):
        cache.read(KEY)
    (folder,) = find_caches(cache.root, ["tiny-own-*"])
    problems = {one.location.key: one.problem for one in check_clips(folder)}
    assert "no longer holds the clip" in problems.pop(KEY)
    assert set(problems.values()) == {None}


def test_a_plan_for_other_tokens_is_no_token_set(cache):
    add_plan(cache, compressor_of("uniform"))
    cache.features.write(clip(0), features(7), (), (1.0, 2.0))
    with pytest.raises(CacheError, match="is a plan for other tokens than"):
        cache.read(KEY)
    (folder,) = find_caches(cache.root, ["tiny-own-*"])
    (checked,) = check_clips(folder)
    assert checked.problem.startswith("it is a plan for other tokens")


def test_damaged_features_are_removed_when_a_plan_meets_them(cache):
    video = add_plan(cache, compressor_of("uniform"))
    path = cache.features.storage.path(f"{KEY}.parquet")
    data = bytearray(cache.features.storage.read(f"{KEY}.parquet"))
    at = data.index(video.tokens[0].numpy().tobytes())
    data[at] ^= 1
    with open(path, "wb") as file:
        file.write(data)
    with pytest.raises(FeaturesDamagedError, match=r"checksum of token \d+ differs"):
        cache.read(KEY)
    assert cache.keys() == set()
    assert KEY not in cache.features.parts()["tokens"]


def test_damage_in_a_plan_is_found(cache):
    add_plan(cache, compressor_of("uniform"))
    data = bytearray(cache.storage.read(f"{KEY}-plan.parquet"))
    data[200] ^= 0xFF
    cache.storage.write(f"{KEY}-plan.parquet", bytes(data))
    with pytest.raises(CacheError, match=f"{KEY}-plan.parquet"):
        cache.read(KEY)
    cache.discard(KEY)
    assert cache.keys() == set()


def test_shards_hold_plans_and_tokens_apart(cache):
    expected = {n: add_plan(cache, compressor_of("tango"), n) for n in range(2)}
    for number in (2, 3):
        expected[number] = compressor_of("tango").compress(features(number))
        cache.write(clip(number), Entry(expected[number], 1.0, 2.0, 3.0))
    (folder,) = find_caches(cache.root, ["tiny-own-*"])
    assert not any(problem for _, problem in compact_cache(folder))
    assert len([name for name in files_of(cache) if name.startswith("shard-")]) == 2
    assert cache.keys() == {clip(n).key for n in range(4)}
    for number, video in expected.items():
        assert torch.equal(cache.read(clip(number).key).video.tokens, video.tokens)
    (folder,) = find_caches(cache.root, ["tiny-own-*"])
    assert (folder.num_clips, folder.num_plans) == (4, 2)
    assert count_tokens(folder).total == 48


def test_plans_become_tokens_that_need_no_features(cache):
    expected = [add_plan(cache, compressor_of("tango"), number) for number in range(3)]
    every = find_caches(cache.root)
    stored, folder = sorted(every, key=lambda one: one.holds_features, reverse=True)
    assert dependents_of(stored, stored.entries, every).plans == 3
    said = []
    materialise(folder, lambda name, problem: said.append(problem))
    assert said == [None] * 3
    for number in range(3):
        cache.features.discard(clip(number).key)
    for number, video in enumerate(expected):
        assert torch.equal(cache.read(clip(number).key).video.tokens, video.tokens)
    assert dependents_of(stored, stored.entries, find_caches(cache.root)).plans == 0
