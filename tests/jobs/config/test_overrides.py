"""What `--set` does to a recipe before it is checked."""

import pytest
import yaml

from jobs.config.overrides import with_overrides
from jobs.config.recipe import RecipeError, load_job, load_jobs

TABLE = {
    "benchmarks": [{"name": "videomme", "root": "/data/v"}, {"name": "mlvu", "root": "/data/m"}],
    "model": {
        "name": "llava-onevision-7b",
        "num_frames": 32,
        "revision": "main",
        "saliency_from": "google/siglip",
    },
    "methods": [
        {"name": "full"},
        {"name": "tango", "retention": [0.1, 0.2], "inner": {"layer": 18, "retention": 0.5}},
    ],
}


def test_one_benchmark_replaces_the_list_of_a_recipe():
    changed = with_overrides(TABLE, ["benchmark.name=shapes", "benchmark.seed=3"])
    assert changed["benchmark"] == {"name": "shapes", "seed": 3}
    assert "benchmarks" not in changed
    assert len(TABLE["benchmarks"]) == 2


def test_one_method_replaces_the_list_of_a_recipe():
    changed = with_overrides(TABLE, ["method.name=tango", "method.retention=0.3"])
    assert changed["method"] == {"name": "tango", "retention": 0.3}
    assert "methods" not in changed


def test_another_model_removes_the_checkpoint_of_the_old_one():
    changed = with_overrides(TABLE, ["model.name=tiny"])
    assert changed["model"] == {"name": "tiny", "num_frames": 32}


def test_the_embedded_model_runs_without_the_gpus_of_another_one():
    recipe = {**TABLE, "pools": {"answer": {"num_gpus": 1}, "compress": {"num_gpus": 1}}}
    assert "pools" not in with_overrides(recipe, ["model.name=tiny"])
    changed = with_overrides(recipe, ["model.name=tiny", "pools.answer.num_gpus=0.5"])
    assert changed["pools"] == {"answer": {"num_gpus": 0.5}}
    assert with_overrides(recipe, ["model.name=llava-video-7b"])["pools"] == recipe["pools"]


def test_the_same_model_keeps_its_checkpoint():
    assert with_overrides(TABLE, ["model.name=llava-onevision-7b"])["model"] == TABLE["model"]


def test_a_raised_digit_is_no_index():
    with pytest.raises(RecipeError, match=r"'²' is not an index of a list of 2; use 0 to 1"):
        with_overrides(TABLE, ["methods.².name=full"])


@pytest.mark.parametrize("order", [1, -1])
def test_what_is_set_with_another_name_stays_in_any_order(order):
    recipe = {"benchmark": {"name": "videomme", "root": "/data/v", "protocol": "lmms_eval"}}
    overrides = ["benchmark.name=mlvu", "benchmark.root=/data/m"][::order]
    assert with_overrides(recipe, overrides)["benchmark"] == {
        "name": "mlvu",
        "root": "/data/m",
        "protocol": "lmms_eval",
    }


def test_a_number_is_an_index_of_a_list():
    changed = with_overrides(TABLE, ["methods.1.inner.layer=2", "methods.1.retention.0=0.05"])
    assert changed["methods"][1]["inner"] == {"layer": 2, "retention": 0.5}
    assert changed["methods"][1]["retention"] == [0.05, 0.2]
    assert changed["methods"][0] == {"name": "full"}
    assert TABLE["methods"][1]["inner"]["layer"] == 18


@pytest.fixture
def recipe(tmp_path):
    content = {
        "benchmark": {"name": "shapes"},
        "model": {"name": "tiny", "num_frames": [4, 8]},
        "methods": [{"name": "full"}],
    }
    path = tmp_path / "frames.yaml"
    path.write_text(yaml.safe_dump(content))
    return path


def test_a_list_of_frame_counts_stands_for_one_job_each(recipe):
    assert [job.model.num_frames for job in load_jobs(recipe)] == [4, 8]
    assert load_job(recipe, ["model.num_frames=8"]).model.num_frames == 8


def test_lists_of_the_input_stand_for_one_job_each(recipe):
    jobs = load_jobs(recipe, ["model.num_frames=8", "model.pooling_step=[2, 4]"])
    assert [(job.model.num_frames, job.model.options) for job in jobs] == [
        (8, {"pooling_step": 2}),
        (8, {"pooling_step": 4}),
    ]
    jobs = load_jobs(recipe, ["model.name=qwen2.5-vl-7b", "model.max_pixels=[null, 50176]"])
    assert [(job.model.num_frames, job.model.options) for job in jobs] == [
        (4, {}),
        (4, {"max_pixels": 50176}),
        (8, {}),
        (8, {"max_pixels": 50176}),
    ]
    with pytest.raises(RecipeError, match=r"model\.pooling_step must be 2 or larger, got 1"):
        load_jobs(recipe, ["model.pooling_step=[1, 4]"])
    with pytest.raises(RecipeError, match=r"model\.pooling_step lists several values"):
        load_job(recipe, ["model.num_frames=8", "model.pooling_step=[2, 4]"])


def test_a_recipe_of_several_jobs_is_sent_to_sweep(recipe):
    with pytest.raises(RecipeError, match=r"num_frames lists several values; run it with `tango s"):
        load_job(recipe)
