"""Where a run lies: a directory of its own for a new one, the old one for one that goes on."""

from __future__ import annotations

import pytest
from fake_clock import FakeClock
from jobs_for_tests import job

from jobs.config.recipe import RecipeError
from jobs.run.run_dirs import claim, find_run, make_run_dir, new_run_dir


@pytest.fixture
def recipe(tmp_path):
    return job(tmp_path / "shapes")


THREE = {"methods": [{"name": "uniform", "retention": [0.1, 0.2, 0.3]}]}
POOLED = {"model": {"name": "tiny", "num_frames": 8, "pooling_step": 4}}


@pytest.mark.parametrize(
    ("changes", "methods", "name"),
    [
        ({}, None, "shapes-tiny-full"),
        ({"model": {"name": "tiny", "num_frames": 4}}, None, "shapes-tiny-4f-full"),
        (POOLED, None, "shapes-tiny-8f-pooling_step4-full"),
        (THREE, None, "shapes-tiny-3-methods"),
        (THREE, ["uniform r=0.1", "uniform r=0.2"], "shapes-tiny-2-methods"),
        (THREE, ["uniform r=0.1"], "shapes-tiny-uniform-r0.1"),
    ],
)
def test_a_directory_is_named_by_time_and_content(tmp_path, changes, methods, name):
    clock = FakeClock()
    stamp = f"{clock.now().astimezone():%Y%m%d-%H%M%S}"
    recipe = job(tmp_path / "shapes", **changes)
    run_dir = new_run_dir(recipe, tmp_path, methods=methods, clock=clock)
    assert run_dir == tmp_path / f"{stamp}-{name}"
    assert run_dir.is_dir()


def test_two_runs_of_one_second_have_two_directories(recipe, tmp_path):
    clock = FakeClock()
    first, second = (new_run_dir(recipe, tmp_path, clock=clock) for _ in range(2))
    assert second.name == f"{first.name}-2"
    clock.sleep(1)
    assert not new_run_dir(recipe, tmp_path, clock=clock).name.startswith(first.name)


def test_an_output_that_is_a_file_is_refused(tmp_path):
    (tmp_path / "file").touch()
    with pytest.raises(RecipeError, match=r"--output .*file cannot be written to"):
        make_run_dir(["x"], tmp_path / "file")


def test_a_run_is_found_by_path_and_by_name(recipe, tmp_path):
    run_dir = new_run_dir(recipe, tmp_path)
    with pytest.raises(RecipeError, match="no run directory with a job"):
        find_run(run_dir.name, tmp_path)
    claim(run_dir, recipe)
    assert find_run(run_dir.name, tmp_path) == run_dir
    assert find_run(str(run_dir), tmp_path / "elsewhere") == run_dir


def test_a_run_goes_on_with_other_workers_but_not_with_other_methods(tmp_path):
    first = job(tmp_path, executor="ray")
    claim(tmp_path, first)
    claim(tmp_path, job(tmp_path, executor="local", max_failures=3))
    assert "executor: local" in (tmp_path / "job.yaml").read_text()
    with pytest.raises(RecipeError, match="the recipe's limit differs from that run; resume it"):
        claim(tmp_path, job(tmp_path, limit=7))


def test_a_damaged_recipe_is_named(tmp_path):
    (tmp_path / "job.yaml").write_text("{")
    with pytest.raises(RecipeError, match=r"job\.yaml is not YAML.*; restore the file, or start"):
        claim(tmp_path, job(tmp_path))
