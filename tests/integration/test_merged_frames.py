"""A model that merges frames inside its encoder, from a recipe to its answers."""

from __future__ import annotations

import pandas as pd
import pytest
from jobs_for_tests import answers_of, job, plan_of, run, what_was_said

from jobs.analysis.clips import JobClips
from jobs.config.errors import RecipeError
from jobs.viewer.drawings import TokenSets
from pipeline.rows import clips_in

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


def test_what_shows_frames_says_that_it_cannot(shapes, tmp_path):
    recipe = job(shapes, executor="local", limit=1, methods=METHODS, model=MODEL)
    run(recipe, tmp_path)
    plan = plan_of(recipe, tmp_path / "cache")
    (clip,) = clips_in(plan.clips)
    drawing = TokenSets([str(tmp_path / "cache")]).drawing(plan.methods[1].cache, clip.clip_key)
    assert drawing == "The encoder merges frames, whose tokens are not drawn."
    with pytest.raises(RecipeError, match=r"leave model\.merge_layers out"):
        JobClips(recipe, str(tmp_path / "cache"))


@pytest.mark.parametrize(
    ("method", "advice"),
    [("earlytom", r"set model\.merge_layers"), ("aot", "it provides attention")],
)
def test_a_method_whose_signals_are_lacking_is_refused_with_what_to_do(
    shapes, tmp_path, method, advice
):
    recipe = job(shapes, limit=1, methods=[{"name": method, "retention": 0.5}])
    with pytest.raises(RecipeError, match=f"method '{method} r=0.5': .*{advice}"):
        run(recipe, tmp_path)
