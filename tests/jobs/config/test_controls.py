"""`--controls` adds every control at the retentions of a recipe, and none twice."""

import pytest

from jobs.config.methods import AT_A_RETENTION, control_methods
from jobs.config.recipe import parse_job
from tango_core.compressors import CONTROLS

RECIPE = {
    "benchmark": {"name": "shapes"},
    "methods": [{"name": "full"}, {"name": "tango", "retention": [0.1, 0.25]}],
}


def _names(content):
    return [name for name, _ in parse_job(content, "recipe.yaml").all_methods]


def test_all_controls_are_known_here():
    assert {str(control["name"]) for control in AT_A_RETENTION} | {"block"} == set(CONTROLS)


def test_controls_stand_at_every_retention_of_the_recipe():
    names = _names({**RECIPE, "controls": True})
    assert names[:3] == _names(RECIPE) == ["full", "tango r=0.1", "tango r=0.25"]
    for name in ("random", "uniform", "fewer_frames", "pool_time"):
        assert {f"{name} r=0.1", f"{name} r=0.25"} <= set(names)
    assert "pool_space r=0.1 budget=exact" in names
    # Blocks of 2 x 2 tokens keep a quarter; no blocks keep a tenth.
    assert [name for name in names if "block" in name] == ["block factor=2"]


def test_a_control_of_the_recipe_is_not_added_again():
    methods = [*RECIPE["methods"], {"name": "random", "retention": 0.1}]
    names = _names({**RECIPE, "methods": methods, "controls": True})
    assert names.count("random r=0.1") == 1


def test_without_a_retention_there_is_nothing_to_control():
    assert control_methods([{"name": "full"}, {"name": "block", "factor": 2}]) == []


@pytest.mark.parametrize("retention", [1, 1.0])
def test_all_tokens_need_no_control(retention):
    assert control_methods([{"name": "tango", "retention": retention}]) == []
