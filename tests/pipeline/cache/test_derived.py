"""Token sets that are computed from stored features: the same bytes as those that are stored."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
import pandas as pd
import pytest
import torch
from safetensors.torch import load_file
from stored_features import FRAMES, GRID, MODEL, WIDTH, clip, features, filled, token_cache

from pipeline.cache.derived import compressor_of, derived, derived_for, features_with, materialise
from pipeline.cache.directory import TokenCache
from pipeline.cache.export import export_cache
from pipeline.cache.features import open_features
from pipeline.cache.folders import check_entries, compact_cache, find_caches
from pipeline.cache.names import LARGE_SIGNALS
from pipeline.cache.rows import CacheError, Entry, rounded
from tango_core.compressors import METHODS, build_method
from tango_core.compressors.base import Compressor
from tango_core.compressors.baselines import Uniform

KEY = clip().key
BEFORE_THE_LLM = sorted(name for name, cls in METHODS.items() if issubclass(cls, Compressor))


def method_of(name):
    options = {} if name in ("full", "block") else {"retention": 0.25}
    return build_method(name, num_layers=8, **options).compressor


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("name", BEFORE_THE_LLM)
def test_stored_features_give_the_bytes_of_compress(tmp_path, name, dtype):
    compressor, given = method_of(name), features(dtype=dtype)
    large = compressor.needs & set(LARGE_SIGNALS)
    filled(tmp_path, tokens=dtype).prepared(clip(), given, large, (1.0, 2.0), signals_alone=True)()
    video = compressor.compress(given)
    found = features_with(token_cache(tmp_path, compressor), compressor)(KEY)
    (entry,) = derived_for(compressor, found, [replace(found.features, question=given.question)])
    assert torch.equal(entry.video.tokens, video.tokens)
    assert entry.video.tokens.dtype == dtype
    assert torch.equal(entry.video.indices, video.indices)
    assert torch.equal(entry.video.timestamps, video.timestamps)
    assert (entry.video.grid, entry.video.source) == (video.grid, video.source)
    assert (entry.decode_video_ms, entry.encode_ms) == (1.0, 2.0)


@pytest.mark.parametrize("name", BEFORE_THE_LLM)
def test_a_manifest_says_which_method_fills_its_cache(tmp_path, name):
    compressor = method_of(name)
    found = compressor_of(token_cache(tmp_path, compressor).settings)
    assert found.identity() == compressor.identity()
    given = features()
    assert torch.equal(found.compress(given).tokens, compressor.compress(given).tokens)


@dataclass(frozen=True)
class Own(Uniform):
    """A method from outside that has the name of no shipped one."""


def test_a_method_from_elsewhere_is_not_taken_for_a_shipped_one(tmp_path):
    assert compressor_of(token_cache(tmp_path, Own(0.25)).settings) is None
    edited = {**Uniform(0.25).identity(), "edited_digest": "0" * 12}
    assert compressor_of({"compressor": edited}) is None
    assert compressor_of({}) is None


def test_materialised_token_sets_need_no_features(tmp_path):
    stored, compressor = filled(tmp_path, range(3)), method_of("tango")
    cache = token_cache(tmp_path, compressor)
    reports = []
    (folder,) = (one for one in find_caches(tmp_path) if not one.holds_features)
    materialise(folder.cache, lambda *report: reports.append(report))
    assert sorted(reports) == sorted((clip(number).key, None) for number in range(3))
    for number in range(3):
        stored.discard(clip(number).key)
        read, wanted = cache.read(clip(number).key), compressor.compress(features(number))
        assert torch.equal(read.video.tokens, wanted.tokens)
    filled(tmp_path / "other")
    token_cache(tmp_path / "other", Own(0.25))
    (folder,) = (one for one in find_caches(tmp_path / "other") if not one.holds_features)
    with pytest.raises(CacheError, match="does not come with this version"):
        materialise(folder.cache, lambda *report: None)


EXTRA = 3


def deep(number=0, dtype=torch.float32, *, anchored=False):
    """A clip whose tokens have three rows of their own."""
    generator = torch.Generator().manual_seed(50 + number)
    cells = GRID[0] * GRID[1]
    companions = torch.randn(FRAMES, cells, EXTRA, WIDTH, generator=generator) * 40
    plain = features(number, dtype)
    return replace(plain, companions=companions.to(dtype), anchored=anchored)


def caches(root, rule="merge", dtype="auto"):
    """A feature cache and a token cache of a model whose tokens have companions."""
    model = {**MODEL, "companions": rule}
    stored = open_features(str(root), model, dtype)
    stored.prepare()
    settings = {"model": model, "compressor": {"name": "own"}}
    if dtype == "int8":
        settings["features"] = "int8"
    tokens = TokenCache(str(root), settings, "tiny-own")
    tokens.prepare()
    return stored, tokens


def same(one, other):
    return torch.equal(one.tokens, other.tokens) and torch.equal(one.companions, other.companions)


@pytest.mark.parametrize("dtype", ["auto", "int8"])
@pytest.mark.parametrize("rule", ["merge", "anchor"])
@pytest.mark.parametrize("name", ["uniform", "tango", "full", "pool_time"])
def test_companions_are_stored_and_give_the_bytes_of_compress(tmp_path, name, rule, dtype):
    stored, _ = caches(tmp_path, rule, dtype)
    given = deep(anchored=rule == "anchor")
    stored.prepared(clip(), given, ("saliency", "attention", "keys"), (1.0, 2.0))()
    if dtype == "int8":
        given, _ = rounded(given)
    options = {} if name == "full" else {"retention": 0.25}
    compressor = build_method(name, **options).compressor
    found = stored.read(clip().key, stored.parts(), compressor.needs)
    assert same(derived(compressor, found).video, compressor.compress(given))
    assert found.features.anchored == (rule == "anchor")


def test_shards_and_exports_keep_them(tmp_path):
    _, tokens = caches(tmp_path / "caches")
    compressor = build_method("uniform", retention=0.3).compressor
    videos = [compressor.compress(deep(number)) for number in range(3)]
    for number, video in enumerate(videos):
        tokens.write(clip(number), Entry(video, 1.0, 2.0, 3.0))
    (folder,) = (one for one in find_caches(str(tmp_path / "caches")) if one.num_clips)
    assert not [why for _, why in compact_cache(folder) if why]
    (folder,) = (one for one in find_caches(str(tmp_path / "caches")) if one.num_clips)
    assert not [problem for _, problem in check_entries(folder) if problem]
    for number, video in enumerate(videos):
        assert same(tokens.read(clip(number).key).video, video)
    for form in ("safetensors", "parquet"):
        export_cache(folder, str(tmp_path / form), form, lambda name, why: None)
    found = load_file(tmp_path / "safetensors" / f"{clip(1).key}.safetensors")
    assert torch.equal(found["companions"], videos[1].companions)
    table = pd.read_parquet(tmp_path / "parquet" / "clips-00000.parquet")
    row = table[table["clip_key"] == clip(2).key].iloc[0]
    rows = np.stack(row["companions"]).reshape(-1, EXTRA, WIDTH)
    np.testing.assert_array_equal(rows, videos[2].companions.numpy())
