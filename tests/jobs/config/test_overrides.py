"""What `--set` does to a recipe before it is checked."""

from copy import deepcopy

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


GPUS = {**TABLE, "pools": {"answer": {"num_gpus": 1}, "compress": {"num_gpus": 1}}}
VIDEOMME = {"benchmark": {"name": "videomme", "root": "/data/v", "protocol": "lmms_eval"}}
MLVU = {"name": "mlvu", "root": "/data/m", "protocol": "lmms_eval"}
INNER = {**TABLE["methods"][1], "retention": [0.05, 0.2], "inner": {"layer": 2, "retention": 0.5}}


@pytest.mark.parametrize(
    ("recipe", "overrides", "expected"),
    [
        (
            TABLE,
            ["benchmark.name=shapes", "benchmark.seed=3"],
            {"benchmark": {"name": "shapes", "seed": 3}, "benchmarks": None},
        ),
        (
            TABLE,
            ["method.name=tango", "method.retention=0.3"],
            {"method": {"name": "tango", "retention": 0.3}, "methods": None},
        ),
        (TABLE, ["model.name=tiny"], {"model": {"name": "tiny", "num_frames": 32}}),
        (TABLE, ["model.name=llava-onevision-7b"], {"model": TABLE["model"]}),
        (GPUS, ["model.name=tiny"], {"pools": None}),
        (
            GPUS,
            ["model.name=tiny", "pools.answer.num_gpus=0.5"],
            {"pools": {"answer": {"num_gpus": 0.5}}},
        ),
        (GPUS, ["model.name=llava-video-7b"], {"pools": GPUS["pools"]}),
        (VIDEOMME, ["benchmark.name=mlvu", "benchmark.root=/data/m"], {"benchmark": MLVU}),
        (VIDEOMME, ["benchmark.root=/data/m", "benchmark.name=mlvu"], {"benchmark": MLVU}),
        (
            TABLE,
            ["methods.1.inner.layer=2", "methods.1.retention.0=0.05"],
            {"methods": [{"name": "full"}, INNER]},
        ),
    ],
)
def test_overrides_change_a_copy_of_the_recipe(recipe, overrides, expected):
    before = deepcopy(recipe)
    changed = with_overrides(recipe, overrides)
    assert {key: changed.get(key) for key in expected} == expected
    assert recipe == before


def test_a_raised_digit_is_no_index():
    with pytest.raises(RecipeError, match=r"'²' is not an index of a list of 2; use 0 to 1"):
        with_overrides(TABLE, ["methods.².name=full"])


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
