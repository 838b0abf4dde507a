"""The commands of `jobs/recipes/README.md` on the built-in model and benchmark."""

from __future__ import annotations

import itertools
import re
import shlex
from pathlib import Path

import pytest
from jobs_for_tests import answers_of, run
from summaries import write_summary

import jobs
from jobs.config.recipe import load_jobs

RECIPES = Path(jobs.__file__).parent / "recipes"
README = (RECIPES / "README.md").read_text()
COMMANDS = {
    Path(shlex.split(line)[2]).stem: shlex.split(line)[3:]
    for line in re.search(r"```console\n(.*?)```", README, re.S)[1].splitlines()
}
NEED_NOTHING_ELSE = {f"shapes_{name}" for name in ("tiny", "demo", "table", "questions", "merged")}
# The tower of the embedded model has too few blocks for them.
NEED_MORE_BLOCKS = {"aot_llava_onevision", "earlytom_llava_onevision"}
# Dozens of cells, or many frames.
LARGE = {
    *("frames_scaling", "newer_llava_onevision", "newer_llava_video", "newer_qwen3_vl"),
    *("shapes_controls", "videomme_v2_qwen2_5_vl"),
}
# Cells that the four layers of the embedded model cannot hold.
LEFT_OUT = {
    "table1_llava_onevision": {
        *(f"fastv r={r} layer=2" for r in (0.1, 0.15, 0.2)),
        "dart r=0.1 layer=2",
        *(f"holitom r={r} inner=holitom-merge+18+0.5" for r in (0.1, 0.15, 0.2)),
    },
    "table2_llava_video": {
        "tango r=0.1 inner=fastv-merge+18+0.5",
        "holitom r=0.1 inner=holitom-merge+18+0.5",
    },
    "table2_qwen2_5_vl": {"fastv r=0.2 layer=2"},
    "internvl3_5": {f"fastv r={r} layer=2" for r in (0.1, 0.2)},
}


def overrides_of(arguments):
    """Values of `--set` on a command line."""
    return [value for flag, value in itertools.pairwise(arguments) if flag == "--set"]


def test_every_recipe_is_documented_with_a_command():
    names = {path.stem for path in RECIPES.glob("*.yaml")}
    assert set(COMMANDS) == names - NEED_NOTHING_ELSE - NEED_MORE_BLOCKS
    assert set(re.findall(r"^\| `(\w+)\.yaml` \|", README, re.M)) == names


@pytest.mark.parametrize(
    "name",
    [pytest.param(name, marks=pytest.mark.slow) if name in LARGE else name for name in COMMANDS],
)
def test_a_recipe_runs_on_the_built_in_model_and_benchmark(name, shapes, tmp_path):
    arguments = COMMANDS[name]
    changes = [*overrides_of(arguments), f"benchmark.root={shapes}", "executor=local", "limit=1"]
    assert overrides_of(arguments) == ["model.name=tiny", "benchmark.name=shapes"]
    built = load_jobs(RECIPES / f"{name}.yaml", changes)
    assert len(built) == (4 if name == "frames_scaling" else 1)
    for job in built:
        outcome, run_dir = run(job, tmp_path)
        assert (outcome.num_clips, outcome.num_failed_clips) == (1, 0)
        answers = answers_of(run_dir)
        left_out = {entry.name for entry in outcome.facts.skipped}
        assert left_out == LEFT_OUT.get(name, set())
        assert set(answers["cell"]) == {cell for cell, _ in job.all_methods} - left_out
        assert set(answers["status"]) <= {"ok", "unparsed"}
        read = answers[answers["status"] == "ok"]
        assert ((read["choice_text"] == read["answer_text"]) == read["correct"]).all()
        summary = write_summary(run_dir).to_json()
        assert {entry["name"] for entry in summary["left_out"]} == left_out
        pruned = [entry for entry in summary["cells"] if entry["method"] != "full"]
        assert pruned
        assert all(0 < entry["equivalent_retention"] < 0.65 for entry in pruned)
