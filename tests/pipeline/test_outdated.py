"""Plans that a job which only fills caches would count as hits: told by shards, or looked at."""

from __future__ import annotations

import pytest
from encoded_again import (
    TOPK,
    UNIFORM,
    compacted,
    encoded_elsewhere,
    evaluated,
    filled,
    folders_of,
)
from faulty_storage import opener
from jobs_for_tests import job, run

from jobs.run.build import build
from jobs.run.planning import make_plan
from pipeline.cache.checks import check_clips
from pipeline.outdated import look_at_plans
from pipeline.storage import Storage


@pytest.fixture(scope="module")
def shapes(tmp_path_factory):
    return tmp_path_factory.mktemp("shapes")


def said_of_plans(caplog):
    """What a job said of outdated plans, a line each."""
    found = [one.getMessage() for one in caplog.records if one.name == "pipeline.outdated"]
    caplog.clear()
    return found


@pytest.mark.parametrize("stored", ["all", "none"])
def test_a_job_that_only_fills_caches_names_those_with_outdated_plans(
    shapes, tmp_path, caplog, stored
):
    filled(shapes, tmp_path, UNIFORM)
    filled(shapes, tmp_path, UNIFORM, TOPK)
    assert said_of_plans(caplog) == []
    keys = encoded_elsewhere(tmp_path)
    topk, uniform = folders_of(tmp_path, of_features=False)
    for key in keys:
        topk.cache.drop_outdated(key)
    found = filled(shapes, tmp_path, UNIFORM, TOPK, stored=stored)
    assert (found.num_hits, found.num_computed) == (len(keys), len(keys))
    (said,) = said_of_plans(caplog)
    assert f"leaves as they are: {uniform.name} ({len(keys)} of {len(keys)} looked at); " in said
    assert "tango cache verify --delete" in said
    filled(shapes, tmp_path, TOPK)
    assert said_of_plans(caplog) == []
    evaluated(shapes, tmp_path, UNIFORM)
    filled(shapes, tmp_path, UNIFORM)
    assert said_of_plans(caplog) == []


@pytest.mark.parametrize("run_job", [filled, evaluated])
def test_outdated_plans_in_shards_are_computed_again_from_stored_features(
    shapes, tmp_path, caplog, run_job
):
    caplog.set_level("INFO")
    filled(shapes, tmp_path, UNIFORM, TOPK)
    keys = encoded_elsewhere(tmp_path)[:3]
    topk, _ = folders_of(tmp_path, of_features=False)
    for key in keys:  # these of the other method are plans for the features as they are now
        topk.cache.drop_outdated(key)
    filled(shapes, tmp_path, UNIFORM, TOPK)
    compacted(tmp_path)
    caplog.clear()
    found = run_job(shapes, tmp_path, UNIFORM, TOPK)
    result = found if run_job is filled else found[0]
    assert (result.num_hits, result.num_computed) == (3, 5)
    assert (result.num_decoded, result.num_encoded, result.num_failed_clips) == (0, 0, 0)
    assert "computed again" not in caplog.text, "the plan of the job knows; nobody met them"
    compacted(tmp_path)
    again = filled(shapes, tmp_path, UNIFORM, TOPK)
    assert (again.num_hits, again.num_computed) == (8, 0)
    assert said_of_plans(caplog) == []
    for folder in folders_of(tmp_path, of_features=False):
        assert [one.problem for one in check_clips(folder)] == [None] * 4


def test_a_job_without_the_store_encodes_clips_of_outdated_plans_in_shards(shapes, tmp_path):
    filled(shapes, tmp_path, UNIFORM)
    keys = encoded_elsewhere(tmp_path)
    compacted(tmp_path)
    found = filled(shapes, tmp_path, UNIFORM, stored="none")
    assert (found.num_encoded, found.num_computed) == (len(keys), len(keys))
    assert filled(shapes, tmp_path, UNIFORM, stored="none").num_hits == len(keys)


def test_tokens_beside_outdated_plans_are_no_reason_to_warn(shapes, tmp_path, caplog):
    filled(shapes, tmp_path, UNIFORM)
    (folder,) = folders_of(tmp_path, of_features=False)
    first, *others = folder.locations
    for location in others:
        stored = folder.read(location)
        folder.cache.write(stored.clip, stored.entry)
    encoded_elsewhere(tmp_path)
    filled(shapes, tmp_path, UNIFORM)
    (said,) = said_of_plans(caplog)
    assert "(1 of 4 looked at)" in said
    folder.discard(first)
    filled(shapes, tmp_path, UNIFORM)
    assert said_of_plans(caplog) == []


def test_of_many_plans_a_few_are_looked_at(shapes, tmp_path, monkeypatch):
    recipe = job(shapes, methods=[UNIFORM], executor="local", cache={"features": "all"})
    run(recipe, tmp_path, kind="precompute")
    plan = make_plan(recipe, build(recipe), Storage.at(tmp_path / "cache"), answer=False)
    read, held = [], Storage.read

    def noted(storage, name):
        read.append(name)
        return held(storage, name)

    monkeypatch.setattr(Storage, "read", noted)
    (looked,) = look_at_plans(plan, at_most=2)
    assert (looked.num_plans, looked.num_outdated) == (2, 0)
    assert len(read) == 2
    assert all(name.endswith("-plan.parquet") for name in read)


def test_a_store_that_fails_is_not_waited_for_and_stops_no_job(shapes, tmp_path):
    recipe = job(shapes, methods=[UNIFORM, TOPK], executor="local", cache={"features": "all"})
    run(recipe, tmp_path, kind="precompute")
    asked = []

    def fail(path):
        if path.endswith("-plan.parquet"):
            asked.append(path)
            raise TimeoutError("no answer")

    storage = opener(before_read=fail)(tmp_path / "cache")
    plan = make_plan(recipe, build(recipe), storage, answer=False)
    looked = look_at_plans(plan)
    assert [(one.num_plans, one.num_outdated) for one in looked] == [(0, 0), (0, 0)]
    assert 1 <= len(asked) <= 2
