"""Rows that go with tokens (DeepStack) in token caches, feature stores and exports."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pandas as pd
import pytest
import torch
from safetensors.torch import load_file
from stored_features import FRAMES, GRID, MODEL, WIDTH, clip, features

from pipeline.cache.derived import derived
from pipeline.cache.directory import TokenCache
from pipeline.cache.export import export_cache
from pipeline.cache.features import open_features
from pipeline.cache.folders import check_entries, compact_cache, find_caches
from pipeline.cache.rows import Entry, rounded
from tango_core.compressors import build_method

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
def test_stored_features_give_the_bytes_of_compress(tmp_path, name, rule, dtype):
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
