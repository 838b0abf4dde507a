"""The recipes that come with the project: every one is a job whose methods and models exist."""

from pathlib import Path

import pytest

import jobs
from jobs.config.recipe import load_job, load_jobs
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


@pytest.mark.parametrize("name", [name for name in NAMES if name.startswith("table")])
def test_tables_ask_for_signals_that_their_settings_provide(name):
    """Saliency comes from the SigLIP that `saliency_from` names; the towers have no head."""
    job = load_job(RECIPES / f"{name}.yaml")
    needs = set().union(*(method.compressor.needs for method in cells(name).values()))
    if job.model.name.startswith("llava"):
        assert "saliency" in needs
        assert job.model.saliency_from == "google/siglip-so400m-patch14-384"
