"""A plan is run by the executor that the settings name, with its caches prepared."""

from __future__ import annotations

from contextlib import nullcontext
from dataclasses import replace

import pytest
from jobs_for_tests import job, plan_of

from pipeline.executors import cluster, ray_data
from pipeline.pools import ActorPool, Pools
from pipeline.run import run
from pipeline.settings import Settings


@pytest.fixture
def plan(tmp_path):
    return plan_of(job(tmp_path / "shapes", limit=1), tmp_path / "cache", answer=False)


def test_a_plan_without_clips_touches_nothing(plan, tmp_path):
    empty = replace(plan, clips=plan.clips.slice(0, 0))
    assert list(run(empty, Settings("ray", "127.0.0.1:1"))) == []
    assert not (tmp_path / "cache").exists()


def test_a_loop_fills_a_cache_that_says_what_is_in_it(plan):
    (result,) = run(plan, Settings("local"))
    (cache,) = plan.caches.values()
    assert (result["status"], result["num_computed"]) == ("ok", 1)
    assert cache.storage.read("manifest.json").decode() == cache.manifest
    assert cache.keys() == set(plan.clips["clip_key"].to_pylist())


def test_on_ray_a_user_is_told_of_gpus_that_no_pool_reserves(plan, monkeypatch, caplog):
    """Ray itself is left out: what is said comes before anything runs."""
    nodes = [{"CPU": 8.0}, {"CPU": 8.0, "GPU": 2.0}]
    monkeypatch.setattr(cluster, "connected", lambda *_: nullcontext(nodes))
    monkeypatch.setattr(ray_data, "stream", lambda *_: iter([]))
    assert list(run(plan, Settings("ray"))) == []
    (said,) = [record.getMessage() for record in caplog.records]
    assert said.startswith("pools.compress.num_gpus is 0: the vision encoder runs on the CPU")
    caplog.clear()
    reserved = Pools(compress=ActorPool(num_gpus=1))
    assert list(run(plan, Settings("ray", pools=reserved))) == []
    assert not caplog.records


def test_a_cache_with_other_settings_is_refused_before_anything_is_decoded(plan):
    (cache,) = plan.caches.values()
    cache.storage.write("manifest.json", b"{}")
    with pytest.raises(ValueError, match="was written with other settings"):
        next(run(plan, Settings("local")))
