"""`tango cache` on features and plans."""

from __future__ import annotations

import os
import time
from pathlib import Path

import pytest
from filled_caches import fill
from safetensors.torch import load_file
from stored_features import add_plan, clip, features, filled, token_cache

from tango_core import build_method


@pytest.fixture
def caches(tmp_path):
    """Features of three clips, plans for them, and a cache of another model."""
    root = tmp_path / "caches"
    stored = filled(root, range(3))
    plans = token_cache(root)
    for number in range(3):
        add_plan(plans, build_method("tango", retention=0.25).compressor, number)
    fill(root, range(2))
    return stored, plans


def test_ls_shows_the_bytes_of_features_plans_and_tokens(tango, caches):
    _, out, _ = tango("cache", "ls", "--cache", "caches")
    lines = {line.split()[0]: line for line in out.splitlines() if line}
    stored, plans = caches
    assert "features" in lines[stored.name].split()
    assert "with attention, frame_embeddings, keys, saliency" in lines[stored.name]
    assert "48/48 (100.0 %)" in lines[stored.name]
    assert "3 plans" in lines[plans.name]
    assert "(features " in lines["3"]
    assert ", caches with plans " in lines["3"]
    assert ", tokens " in lines["3"]


def test_gc_says_which_plans_need_what_it_removes(tango, caches):
    stored, plans = caches
    code, out, _ = tango("cache", "gc", "--cache", "caches", "--name", stored.name)
    assert code == 0
    assert "3 plan(s) in 1 token cache(s) need them and become misses" in out
    assert tango("cache", "gc", "--cache", "caches", "--name", stored.name, "--yes")[0] == 0
    assert plans.keys() == set()
    assert tango("cache", "gc", "--cache", "caches")[1] == "nothing to remove\n", "not at once"
    code, out, _ = tango("cache", "verify", "--cache", "caches")
    assert code == 1
    assert out.count("no longer holds the clip") == 3
    for path in Path(plans.storage.root).glob("*-plan.parquet"):
        os.utime(path, (time.time() - 7200,) * 2)
    assert "plans whose features have gone" in tango("cache", "gc", "--cache", "caches", "--yes")[1]
    assert tango("cache", "verify", "--cache", "caches")[0] == 0


def test_verify_names_plans_for_features_that_were_encoded_again(tango, caches):
    stored, plans = caches
    stored.write(clip(1), features(7), (), (1.0, 2.0))
    code, out, _ = tango("cache", "verify", "--cache", "caches")
    assert code == 1
    plan = f"{plans.name}/{clip(1).key}-plan.parquet"
    assert f"{plan}: it is a plan for other tokens than {stored.name} holds" in out
    assert "1 bad file(s)" in out
    assert tango("cache", "verify", "--cache", "caches", "--delete")[0] == 1
    assert plans.keys() == {clip(n).key for n in (0, 2)}
    assert tango("cache", "verify", "--cache", "caches")[0] == 0


def test_materialized_plans_outlive_their_features(tango, tmp_path, caches):
    stored, plans = caches
    assert tango("cache", "compact", "--cache", "caches")[0] == 0
    code, out, _ = tango("cache", "materialize", "--cache", "caches")
    assert code == 0
    assert f"{plans.name}: 3 plans turned into tokens" in out
    _, out, _ = tango("cache", "gc", "--cache", "caches", "--name", stored.name, "--yes")
    assert "need them" not in out
    assert tango("cache", "verify", "--cache", "caches")[0] == 0
    assert plans.keys() == {clip(n).key for n in range(3)}


def test_a_plan_that_cannot_be_applied_stays_one(tango, caches):
    stored, plans = caches
    stored.discard(clip(1).key)
    code, out, _ = tango("cache", "materialize", "--cache", "caches", plans.name)
    assert code == 1
    assert f"still a plan: {plans.name}/{clip(1).key}-plan.parquet: " in out
    assert f"{plans.name}: 2 plans turned into tokens" in out


def test_export_gives_the_tokens_of_plans_and_the_signals_of_features(tango, tmp_path, caches):
    stored, plans = caches
    key = clip(2).key
    assert tango("cache", "export", plans.name, "a", "--cache", "caches")[0] == 0
    expected = plans.read(key).video
    assert load_file(tmp_path / "a" / f"{key}.safetensors")["tokens"].equal(expected.tokens)
    options = ("--cache", "caches", "--format", "parquet")
    assert tango("cache", "export", plans.name, "b", *options)[0] == 0
    assert tango("cache", "export", stored.name, "c", "--cache", "caches")[0] == 0
    clip_file = load_file(tmp_path / "c" / f"{key}.safetensors")
    assert clip_file["tokens"].equal(features(2).tokens)
    assert clip_file["keys"].equal(features(2).keys)
    code, _, err = tango("cache", "export", stored.name, "d", *options)
    assert code == 2
    assert "--format parquet is for token sets" in err
