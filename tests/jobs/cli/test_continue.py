"""`--continue` on the command line: the same command, started again after whatever ended it."""

from __future__ import annotations

import pytest
import yaml

from jobs.config.recipe import load_job
from jobs.run.run_dirs import claim, new_run_dir


@pytest.fixture
def recipe(tmp_path):
    content = {
        "benchmark": {"name": "shapes"},
        "model": {"name": "tiny"},
        "method": {"name": "full"},
    }
    path = tmp_path / "recipe.yaml"
    path.write_text(yaml.safe_dump({**content, "limit": 1, "executor": "local"}))
    return path


@pytest.mark.slow
def test_the_same_command_goes_on_in_the_run_that_was_begun(tango, recipe, tmp_path):
    job = load_job(recipe)
    run = new_run_dir(job, tmp_path / "runs")
    claim(run, job)
    code, _, err = tango("evaluate", recipe, "--continue")
    assert code == 0
    assert f"continuing runs/{run.name}, the newest unfinished run of this job" in err
    assert [path.parent for path in (tmp_path / "runs").glob("*/summary.json")] == [run]
