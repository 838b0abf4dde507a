"""A model that merges frames inside its encoder, from a recipe to its answers."""

from __future__ import annotations

import pandas as pd
import pytest
from jobs_for_tests import answers_of, job, run, what_was_said

from jobs.analysis.clips import JobClips
from jobs.viewer.command import opened
from pipeline.cache.folders import find_caches
from pipeline.cache.names import TOKENS
from tango_core.errors import InputError

METHODS = [{"name": "full"}, {"name": "earlytom", "retention": 0.1}]
MODEL = {"name": "tiny", "merge_layers": "0,1", "merge_window": 6}


@pytest.fixture(scope="module")
def shapes(tmp_path_factory):
    return tmp_path_factory.mktemp("shapes")


def test_merged_features_are_stored_and_are_a_set_of_their_own(shapes, tmp_path):
    recipe = {"executor": "local", "limit": 2, "cache": {"features": "all"}}
    first, plain = run(job(shapes, **recipe, methods=METHODS[:1]), tmp_path / "on")
    own = job(shapes, **recipe, methods=METHODS, model=MODEL)
    second, _ = run(own, tmp_path / "on")
    again, on = run(own, tmp_path / "on")
    assert [one.num_encoded for one in (first, second, again)] == [2, 2, 0]
    recipe["cache"] = {"features": "none"}
    _, off = run(job(shapes, **recipe, methods=METHODS, model=MODEL), tmp_path / "off")
    pd.testing.assert_frame_equal(what_was_said(on), what_was_said(off))
    whole, merged = (answers_of(one)["encode_tflops"].mean() for one in (plain, off))
    assert 0 < merged < 0.9 * whole, "merged frames are not in the later blocks"
    assert answers_of(on)["encode_tflops"].isna().all(), "nothing was encoded"
    answers = what_was_said(on).groupby("cell").first()
    total = answers.loc["full", "tokens_total"]
    assert total == 8 * 64, "of all frames of the clip"
    assert answers.loc["full", "tokens_kept"] < total
    assert abs(answers.loc["earlytom r=0.1", "tokens_kept"] - 0.1 * total) <= 8


def test_the_viewer_draws_merged_frames_at_their_own_times(shapes, tmp_path):
    recipe = {"executor": "local", "limit": 1, "cache": {"features": "all"}}
    _, run_dir = run(job(shapes, **recipe, methods=METHODS, model=MODEL), tmp_path)
    (store,) = (one.cache for one in find_caches(tmp_path / "cache") if one.holds_features)
    (key,) = store.parts()[TOKENS]
    features = store.read(key, [TOKENS], frozenset()).features
    merged, length = features.tokens.shape[:2]
    assert merged < 8, "some frames were merged"
    with opened([run_dir]) as pages:
        for column in (0, 1):
            found = pages.tokens(0, column)
            assert found.sets[0].plan.grid[0] == merged
            assert list(found.view.times) == features.timestamps.tolist()
            assert found.sets[0].missing == ()
    full = answers_of(run_dir).query("cell == 'full'")["tokens_kept"]
    assert set(full) == {merged * length}


def test_analyses_refuse_merged_frames(shapes, tmp_path):
    recipe = job(shapes, executor="local", limit=1, methods=METHODS, model=MODEL)
    with pytest.raises(InputError, match=r"leave model\.merge_layers out"):
        JobClips(recipe, str(tmp_path / "cache"))


@pytest.mark.parametrize(
    ("method", "advice"),
    [("earlytom", r"set model\.merge_layers"), ("aot", "it provides attention")],
)
def test_a_method_whose_signals_are_lacking_is_refused_with_what_to_do(
    shapes, tmp_path, method, advice
):
    recipe = job(shapes, limit=1, methods=[{"name": method, "retention": 0.5}])
    with pytest.raises(InputError, match=f"method '{method} r=0.5': .*{advice}"):
        run(recipe, tmp_path)
