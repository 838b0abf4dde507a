"""Recipes: what they say, `--set`, YAML of any origin, subtitles and controls."""

from __future__ import annotations

from copy import deepcopy

import pytest
import yaml
from jobs_for_tests import RECIPE, write_recipe

from jobs.config.overrides import MAX_BYTES, YamlError, load_yaml, with_overrides
from jobs.config.recipe import (
    AT_A_RETENTION,
    Job,
    RecipeError,
    control_methods,
    job_digest,
    jobs_digest,
    load_job,
    load_jobs,
    parse_job,
)
from tango_core.benchmarks import build_benchmark
from tango_core.compressors import CONTROLS


def parse(**changes):
    return parse_job({**RECIPE, **changes}, "recipe.yaml")


@pytest.fixture
def recipe(tmp_path):
    return write_recipe(tmp_path)


def test_the_resolved_job_is_a_recipe_for_the_same_job(recipe):
    job = load_job(recipe, ["model.num_frames=16", "pools.compress.num_gpus=0.5", "limit=3"])
    assert (job.model.num_frames, job.pools.compress.num_gpus, job.limit) == (16, 0.5, 3)
    assert parse_job(yaml.safe_load(job.to_yaml()), "again") == job


@pytest.mark.parametrize(
    ("limit", "clips"), [("3", 3), ("0.1", 7), ("0.001", 1), ("null", None)], ids=str
)
def test_a_limit_is_a_number_or_a_share_of_clips(recipe, tmp_path, limit, clips):
    """A share is rounded up, of decimal digits: 0.1 * 70 in floats is more than 7."""
    videos = tmp_path / "videos"
    videos.mkdir()
    for number in range(70):
        (videos / f"{number}.mp4").touch()
    job = load_job(recipe, [f"limit={limit}"])
    assert job.clips_of(build_benchmark("custom", root=str(videos))) == clips
    assert parse_job(yaml.safe_load(job.to_yaml()), "again") == job


def test_options_of_a_family_are_written_beside_the_common_ones():
    """As run directories hold them: `null` where nothing was chosen."""
    job = parse(model={"name": "qwen2.5-vl-7b", "max_pixels": 640, "pooling": None})
    assert job.model.options == {"max_pixels": 640}
    written = yaml.safe_load(job.to_yaml())["model"]
    chosen = {"name": "qwen2.5-vl-7b", "dtype": "auto", "device": "auto", "max_pixels": 640}
    chosen["encode_batch"] = "auto"
    assert {key: value for key, value in written.items() if value is not None} == chosen
    assert {"pooling_step", "merge_layers", "position_rule", "companions"} < written.keys()
    assert parse_job(yaml.safe_load(job.to_yaml()), "again") == job


def test_a_list_of_values_stands_for_one_method_per_value():
    job = Job(
        benchmarks=parse().all_benchmarks,
        methods=({"name": "full"}, {"name": "tango", "retention": [0.1, 0.2], "alpha": [1.0, 2.0]}),
    )
    assert [name for name, _ in job.all_methods] == [
        "full",
        "tango r=0.1 alpha=1.0",
        "tango r=0.1 alpha=2.0",
        "tango r=0.2 alpha=1.0",
        "tango r=0.2 alpha=2.0",
    ]


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
        (TABLE, ["method.name=tango"], {"method": {"name": "tango"}, "methods": None}),
        (TABLE, ["model.name=tiny"], {"model": {"name": "tiny", "num_frames": 32}}),
        (GPUS, ["model.name=tiny"], {"pools": None}),
        (
            GPUS,
            ["model.name=tiny", "pools.answer.num_gpus=0.5"],
            {"pools": {"answer": {"num_gpus": 0.5}}},
        ),
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


@pytest.fixture
def listed(tmp_path):
    return write_recipe(tmp_path, model={"name": "tiny", "num_frames": [4, 8]})


def test_lists_of_the_input_stand_for_one_job_each(listed):
    jobs = load_jobs(listed, ["model.num_frames=8", "model.pooling_step=[2, 4]"])
    assert [(job.model.num_frames, job.model.options) for job in jobs] == [
        (8, {"pooling_step": 2}),
        (8, {"pooling_step": 4}),
    ]
    jobs = load_jobs(listed, ["model.name=qwen2.5-vl-7b", "model.max_pixels=[null, 50176]"])
    assert [(job.model.num_frames, job.model.options) for job in jobs] == [
        (4, {}),
        (4, {"max_pixels": 50176}),
        (8, {}),
        (8, {"max_pixels": 50176}),
    ]
    with pytest.raises(RecipeError, match=r"model\.pooling_step must be 2 or larger, got 1"):
        load_jobs(listed, ["model.pooling_step=[1, 4]"])
    with pytest.raises(RecipeError, match=r"model\.pooling_step lists several values"):
        load_job(listed, ["model.num_frames=8", "model.pooling_step=[2, 4]"])


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("[" * 5000 + "]" * 5000, "is not YAML"),
        ("a: 1\nb: {c: 2}\na: 3", "repeats the key 'a' on line 3"),
        ("a: [{b: 1, c: b, b: 2}]", "repeats the key 'b' on line 1"),
        ("#" * (MAX_BYTES + 1), "is larger than"),
        (b"\xff\xfe\x00", "is not YAML"),
        ("a: [", "is not YAML"),
        ("a:\n\tb: 1", "is not YAML"),
        ("a: 2025-13-99", "is not YAML"),
        ("a: !!python/object/apply:os.system [ls]", "is not YAML"),
    ],
)
def test_what_is_no_recipe_is_refused_in_one_line(text, reason):
    with pytest.raises(YamlError, match=reason) as caught:
        load_yaml(text)
    assert "\n" not in str(caught.value)


def test_equal_keys_of_different_mappings_and_merged_ones_are_read():
    text = "a: &a {x: 1, y: x}\nb: &b {x: 2}\nc: {<<: *a, x: 3}\nd: [{x: x}, {x: x}]"
    assert load_yaml(text)["c"] == {"x": 3, "y": "x"}


SWEEP = {
    "benchmark": {"name": "shapes"},
    "methods": [{"name": "full"}, {"name": "tango", "retention": [0.1, 0.25]}],
}


def _names(content):
    return [name for name, _ in parse_job(content, "recipe.yaml").all_methods]


def test_all_controls_are_known_here():
    assert {str(control["name"]) for control in AT_A_RETENTION} | {"block"} == set(CONTROLS)


def test_controls_stand_at_every_retention_of_the_recipe():
    names = _names({**SWEEP, "controls": True})
    assert names[:3] == _names(SWEEP) == ["full", "tango r=0.1", "tango r=0.25"]
    for name in ("random", "uniform", "fewer_frames", "pool_time"):
        assert {f"{name} r=0.1", f"{name} r=0.25"} <= set(names)
    assert "pool_space r=0.1 budget=exact" in names
    # Blocks of 2 x 2 tokens keep a quarter; no blocks keep a tenth.
    assert [name for name in names if "block" in name] == ["block factor=2"]


@pytest.mark.parametrize(
    "method", [{"name": "full"}, {"name": "block", "factor": 2}, {"name": "tango", "retention": 1}]
)
def test_without_a_retention_below_1_there_is_nothing_to_control(method):
    assert control_methods([method]) == []


QWEN = {"name": "qwen3-vl-8b"}
SUBTITLED = {"name": "videomme", "root": "/data"}
SAME = [
    {"engine": "native"},
    {"executor": "ray"},
    {"pools": {"answer": {"num_actors": 4, "num_gpus": 1}}},
    {"decode": {"timeout_s": 7}},
    {"max_failures": 3},
    {"cache": {"features": "all"}},
    {"model": {"name": "tiny", "encode_batch": 2}},
    {"benchmark": {"name": "shapes", "subtitles": False}},
]
OTHER = [
    {"limit": 5},
    {"shard": "0/2"},
    {"mode": "profile"},
    {"method": None, "methods": [{"name": "full"}, {"name": "tango", "retention": 0.1}]},
    {"decode": {"decoder": "pyav"}},
    {"cache": {"features": "all", "feature_dtype": "int8"}},
    {"controls": True},
    {"engine": "vllm"},
    {"model": {"name": "tiny", "num_frames": 4}},
    {"model": {"name": "tiny", "device": "cpu"}},
]
OF_PROMPTS = [{"empty_blocks": "drop"}, {"outer_marks": True}, {"companions": "anchor"}]


def job(**changes):
    return parse_job({**RECIPE, **changes}, "recipe.yaml")


@pytest.mark.parametrize(
    ("first", "second", "same"),
    [
        *((job(), job(**changes), True) for changes in SAME),
        *((job(), job(**changes), False) for changes in OTHER),
        *((job(model=QWEN), job(model={**QWEN, **one}), False) for one in OF_PROMPTS),
        (job(benchmark=SUBTITLED), job(benchmark={**SUBTITLED, "subtitles": True}), False),
    ],
)
def test_what_is_computed_makes_another_job_and_where_it_runs_does_not(first, second, same):
    assert (job_digest(first) == job_digest(second)) == same
    again = parse_job(yaml.safe_load(second.to_yaml()), "again")
    assert (again, job_digest(again)) == (second, job_digest(second))


def test_older_recipes_lack_no_key():
    written = yaml.safe_load(job().to_yaml())
    assert not {"engine", "cache", "controls", "answer"} & set(written)
    assert "subtitles" not in written["benchmark"]


def test_the_jobs_of_one_recipe_have_one_digest():
    one, other = job(), job(limit=2)
    assert jobs_digest([one]) == job_digest(one)
    assert len({jobs_digest(jobs) for jobs in ([one], [one, other], [other, one])}) == 3
