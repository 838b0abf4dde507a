"""A run directory of an older release is continued, whatever options models have got since."""

import pytest
import yaml

from jobs.config.recipe import RecipeError, parse_job
from jobs.run.run_dirs import claim

RECIPE = {
    "benchmark": {"name": "shapes"},
    "method": {"name": "full"},
    "model": {"name": "llava-video-7b", "pooling": "bilinear"},
}


def test_an_option_that_an_older_run_does_not_know_is_not_set(tmp_path):
    job = parse_job(RECIPE, "recipe")
    older = yaml.safe_load(job.to_yaml())
    assert older["model"].pop("position_rule") is None
    (tmp_path / "job.yaml").write_text(yaml.safe_dump(older))
    claim(tmp_path, job)
    assert (tmp_path / "job.yaml").read_text() == job.to_yaml()


def test_another_value_of_an_option_is_another_job(tmp_path):
    claim(tmp_path, parse_job(RECIPE, "recipe"))
    other = parse_job({**RECIPE, "model": {"name": "llava-video-7b"}}, "recipe")
    with pytest.raises(RecipeError, match="the recipe's model differs from that run"):
        claim(tmp_path, other)
