"""`tango cache` on features and on token sets that are computed from them."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from filled_caches import fill
from safetensors.torch import load_file
from stored_features import clip, features, filled, token_cache

from tango_core import build_method

TANGO = build_method("tango", retention=0.25).compressor


@pytest.fixture
def caches(tmp_path):
    """Features of three clips, an empty token cache beside them, and one of another model."""
    root = tmp_path / "caches"
    stored, tokens = filled(root, range(3)), token_cache(root, TANGO)
    fill(root, range(2))
    return stored, tokens


def test_ls_shows_the_bytes_of_features_and_of_tokens(tango, caches):
    _, out, _ = tango("cache", "ls", "--cache", "caches")
    lines = {line.split()[0]: line for line in out.splitlines() if line}
    stored, _ = caches
    assert "features" in lines[stored.name].split()
    assert "with attention, frame_embeddings, keys, saliency" in lines[stored.name]
    assert "48/48 (100.0 %)" in lines[stored.name]
    assert "(features " in lines["3"]
    assert ", tokens " in lines["3"]


@pytest.mark.parametrize("in_shards", [False, True])
def test_materialized_token_sets_outlive_their_features(tango, caches, in_shards):
    stored, tokens = caches
    if in_shards:
        assert tango("cache", "compact", "--cache", "caches")[0] == 0
    code, out, _ = tango("cache", "materialize", "--cache", "caches", tokens.name)
    assert code == 0
    assert f"{tokens.name}: 3 token sets computed from features" in out
    tango("cache", "gc", "--cache", "caches", "--name", stored.name, "--yes")
    assert tango("cache", "verify", "--cache", "caches")[0] == 0
    assert tokens.keys() == {clip(n).key for n in range(3)}


def test_a_token_set_that_cannot_be_computed_is_named(tango, caches):
    stored, tokens = caches
    path = Path(stored.storage.path(f"{clip(1).key}.parquet"))
    path.write_bytes(path.read_bytes()[:-9])
    code, out, _ = tango("cache", "materialize", "--cache", "caches")
    assert code == 1
    assert f"no token set: {tokens.name}/{clip(1).key}: " in out
    assert f"{tokens.name}: 2 token sets computed from features" in out


def test_gc_removes_the_plans_of_earlier_releases(tango, caches):
    _, tokens = caches
    tokens.storage.write(f"{clip(1).key}-plan.parquet", b"of an earlier release")
    os.utime(tokens.storage.path(f"{clip(1).key}-plan.parquet"), (0, 0))
    assert tokens.keys() == set()
    assert tango("cache", "verify", "--cache", "caches")[0] == 0
    out = tango("cache", "gc", "--cache", "caches", "--yes")[1]
    assert "leftovers of killed writers or old releases" in out
    assert not tokens.storage.names(".parquet")


def test_export_gives_the_signals_of_features(tango, tmp_path, caches):
    stored, _ = caches
    key = clip(2).key
    assert tango("cache", "export", stored.name, "c", "--cache", "caches")[0] == 0
    clip_file = load_file(tmp_path / "c" / f"{key}.safetensors")
    assert clip_file["tokens"].equal(features(2).tokens)
    assert clip_file["keys"].equal(features(2).keys)
    options = ("--cache", "caches", "--format", "parquet")
    code, _, err = tango("cache", "export", stored.name, "d", *options)
    assert code == 2
    assert "--format parquet is for token sets" in err
