"""`tango doctor` as a person at a terminal meets it."""

from __future__ import annotations

import json

import pytest

MACHINE = (
    *("packages", "accelerators", "machine", "output", "cache", "temporary", "MLflow", "decoder"),
    "built-in model",
)


@pytest.fixture
def doctor(tango):
    """`doctor(*arguments)`: exit code, and (mark, text) by subject; one line per check."""

    def call(*arguments):
        code, out, err = tango("doctor", *arguments)
        assert not err
        *lines, last = out.splitlines()
        found = {}
        for line in lines:
            assert line[:8].strip() in ("ok", "note", "problem"), out
            found[line[8:23].strip()] = (line[:8].strip(), line[23:])
        assert len(found) == len(lines)
        marks = [mark for mark, _ in found.values()]
        assert f"{marks.count('problem')} problem" in last
        assert f"{marks.count('note')} note" in last
        return code, found

    return call


def test_a_machine_that_runs_the_tests_has_no_problem_and_keeps_nothing(doctor, tmp_path):
    code, found = doctor()
    assert tuple(found) == (*MACHINE, "Ray")
    assert code == 0, found
    assert list(tmp_path.iterdir()) == []


def test_a_recipe_adds_what_it_names(doctor, tmp_path):
    recipe = {
        "benchmark": {"name": "shapes"},
        "model": {"name": "tiny"},
        "method": {"name": "full"},
        "executor": "local",
    }
    (tmp_path / "recipe.yaml").write_text(json.dumps(recipe))
    code, found = doctor("recipe.yaml", "--set", "model.num_frames=[4, 8]")
    assert tuple(found) == ("recipe", *MACHINE, "model", "methods", "benchmark", "Ray")
    assert code == 0, found
    assert "tiny, 4 frames" in found["model"][1]
    assert str(tmp_path / "data" / "shapes") in found["benchmark"][1]


def test_every_mistake_has_its_line_and_the_exit_code_is_1(doctor, tmp_path):
    recipe = {
        "benchmark": {"name": "mlvu", "root": "nowhere"},
        "model": {"path": "/no/such"},
        "method": {"name": "tango", "retention": 2},
        "pools": {"decode": {"num_cpus": 4096}},
        "decode": {"decoder": "pyav"},
    }
    (tmp_path / "recipe.yaml").write_text(json.dumps(recipe))
    places = ["--output", "recipe.yaml/runs", "--cache", "nonsense://bucket"]
    code, found = doctor("recipe.yaml", *places, "--tracking-uri", "http://127.0.0.1:1")
    assert code == 1
    problems = {subject: text for subject, (mark, text) in found.items() if mark == "problem"}
    expected = {
        "output": "--output recipe.yaml/runs cannot be written to",
        "cache": "nonsense://bucket",
        "MLflow": "MlflowException: API request to http://127.0.0.1:1",
        "model": "model.path /no/such",
        "methods": "retention must be in (0, 1], got 2",
        "benchmark": "benchmark.root 'nowhere' is not a folder",
        "Ray": "lower pools.decode.num_cpus",
    }
    assert problems.keys() == expected.keys(), problems
    for subject, part in expected.items():
        assert part in problems[subject]
