"""The recipes that come with the project: every one is a job whose methods and models exist."""

from dataclasses import replace
from pathlib import Path

import pytest
from qwen_checkpoints import build_qwen, save_qwen

import jobs
from jobs.config.recipe import load_job, load_jobs
from jobs.config.sections import BenchmarkSection
from jobs.run.build import build
from tango_core.benchmarks import BENCHMARKS
from tango_core.compressors import METHODS, build_method, equivalent_retention
from tango_core.compressors.base import Compressor
from tango_core.models import MODELS

RECIPES = Path(jobs.__file__).parent / "recipes"
NAMES = sorted(path.stem for path in RECIPES.glob("*.yaml"))


def cells(name):
    """Cell name -> method of a recipe, for the 28 layers of the published models."""
    methods = load_jobs(RECIPES / f"{name}.yaml")[0].all_methods
    return {cell: build_method(**options) for cell, options in methods}


@pytest.mark.parametrize("name", NAMES)
def test_every_recipe_is_a_job_of_things_that_exist_at_their_retentions(name):
    for job in load_jobs(RECIPES / f"{name}.yaml"):
        assert job.model.name in MODELS
        assert {section.name for section in job.all_benchmarks} <= set(BENCHMARKS)
    for cell, method in cells(name).items():
        listed = method.options.get("retention", 1.0)
        assert equivalent_retention(method) == pytest.approx(listed), cell


def test_the_table_of_the_embedded_world_has_every_compressor_at_six_retentions():
    built = cells("shapes_table")
    shares = {}
    for name, method in built.items():
        if not set(method.options) & {"layer", "inner"} or method.pruner is None:
            words = [word for word in name.split(" ") if not word.startswith("r=")]
            shares.setdefault(" ".join(words), []).append(method.options.get("retention"))
    assert shares.pop("full") == [None]
    compressors = {name for name, cls in METHODS.items() if issubclass(cls, Compressor)}
    compressors -= {method.name for method in cells("shapes_questions").values()} - set(shares)
    compressors -= {
        "aot",
        "earlytom",
    }  # needs more blocks than the embedded tower has; an encoder that merges
    shares["flashvid"] = shares["flashvid inner=None"]
    shares["pool_space"] = shares["pool_space budget=exact"]
    absent = set(compressors) - {"full", "block"} - set(shares)
    assert not absent, "add them to jobs/recipes/shapes_table.yaml, at its six retentions"
    for name, values in shares.items():
        if "stop=" not in name and "block" not in name:
            assert values == [0.05, 0.1, 0.15, 0.2, 0.25, 0.5], name


def test_the_ablation_of_the_embedded_world_adds_one_part_per_row():
    parts = ("diverse", "context_ratio", "st_rope", "timestamps", "legacy_writeback")
    steps = [
        [method.options[part] for part in parts]
        for method in cells("shapes_table").values()
        if method.name == "tango"
        and method.options["budget"] == "exact"
        and method.options["retention"] == 0.1
    ]
    assert steps == [
        [False, 0, False, False, False],
        [True, 0, False, False, False],
        [True, 0.4, False, False, False],
        [True, 0.4, True, False, False],
        [True, 0.4, True, True, False],
        [True, 0.4, True, True, True],
    ]


def test_table_2_is_the_published_setting_of_llava_video():
    model = load_job(RECIPES / "table2_llava_video.yaml").model
    assert (model.name, model.num_frames) == ("llava-video-7b", 64)
    assert model.options == {"pooling": "average", "time_instruction": "vlmevalkit"}
    hybrid = next(
        method
        for method in cells("table2_llava_video").values()
        if method.name == "tango" and method.pruner is not None
    )
    assert (hybrid.pruner.layer, hybrid.pruner.retention) == (18, 0.5)
    assert hybrid.compressor.outer_retention == pytest.approx(0.1 * 28 / 23)
    assert hybrid.compressor.identity()["tau"] == 0.65


def test_table_2_of_qwen_is_the_published_setting(tmp_path):
    job = load_job(RECIPES / "table2_qwen2_5_vl.yaml")
    stock = save_qwen(build_qwen(num_layers=28), tmp_path)
    job = replace(
        job,
        model=replace(
            job.model,
            path=str(stock),
            device="cpu",
            options={**job.model.options, "max_pixels": 256 * 8 * 8},
        ),
        benchmarks=(),
        benchmark=BenchmarkSection("shapes"),
    )
    ingredients = build(job)
    model = ingredients.model
    assert (model.name, model.frames.num_frames, model.frames.sampling) == (
        "qwen2.5-vl-7b",
        32,
        "round",
    )
    assert (model.options.position_rule, model.options.seconds_per_grid) == ("hf450", 1.0)
    assert model.dtype == "bfloat16"
    methods = cells("table2_qwen2_5_vl")
    tango = next(method for method in methods.values() if method.name == "tango")
    assert tango.compressor.identity()["tau"] == 0.8
    needs = set().union(*(method.compressor.needs for method in methods.values()))
    assert needs <= model.provides
    assert load_job(RECIPES / "table2_qwen2_5_vl.yaml").model.options["max_pixels"] == 448 * 448


@pytest.mark.parametrize("name", [name for name in NAMES if name.startswith("table")])
def test_tables_ask_for_signals_that_their_settings_provide(name):
    """Saliency comes from the SigLIP that `saliency_from` names; the towers have no head."""
    job = load_job(RECIPES / f"{name}.yaml")
    needs = set().union(*(method.compressor.needs for method in cells(name).values()))
    if job.model.name.startswith("llava"):
        assert "saliency" in needs
        assert job.model.saliency_from == "google/siglip-so400m-patch14-384"
