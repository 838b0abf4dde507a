"""`tango runs replicates` refuses what is no replicate, in one line."""

from __future__ import annotations

from dataclasses import replace

import pytest
import yaml
from fake_answers import cell, facts_of, fake_answers, write_run

from jobs.results.facts import JobFacts

FINISHED = "20250301-101500-shapes-llava-onevision-7b-2-methods"
OTHER = "20250302-101500-shapes-llava-onevision-7b-2-methods"


@pytest.fixture
def root(tmp_path):
    """Two finished runs of one recipe that do not know their checkpoints."""
    for seed, name in enumerate((FINISHED, OTHER)):
        facts = facts_of(cell("full"), cell("tango", 0.1), run_id=name)
        write_run(tmp_path / "runs" / name, fake_answers(facts, num_clips=12, seed=seed), facts)
    return tmp_path / "runs"


@pytest.mark.parametrize(
    ("section", "key", "value", "said"),
    [
        (
            "model",
            "sampling",
            "uniform",
            "model.sampling differs: not set in run 1, uniform in run 2",
        ),
        ("benchmark", "seed", 1, "benchmark.seed differs: 0 in run 1, 1 in run 2"),
        ("model", "path", "other", ""),
    ],
)
def test_runs_of_other_recipes_are_no_replicates(root, tango, tmp_path, section, key, value, said):
    path = root / OTHER / "job.yaml"
    recipe = yaml.safe_load(path.read_text())
    recipe[section][key] = value
    path.write_text(yaml.safe_dump(recipe))
    where = ("--root", root, "--output", tmp_path / "out")
    code, _, err = tango("runs", "replicates", FINISHED, OTHER, *where)
    assert code == (2 if said else 0)
    assert said in err
    assert len(err.splitlines()) == bool(said)


def test_runs_of_one_checkpoint_are_no_replicates(root, tango, tmp_path):
    where = ("--root", root, "--output", tmp_path / "out")
    for name, checkpoints in ((OTHER, "b2"), (FINISHED, "a1"), (OTHER, "a1")):
        facts = JobFacts.load(root / name)
        replace(facts, checkpoint=checkpoints * 20).save(root / name)
        code, _, err = tango("runs", "replicates", FINISHED, OTHER, *where)
        facts = [JobFacts.load(root / one).checkpoint for one in (FINISHED, OTHER)]
        assert code == (2 if len(set(facts)) == 1 else 0)
    assert "run 1 and run 2 are of one checkpoint (a1a1a1a1a1a1)" in err
    assert len(err.splitlines()) == 1
