"""`tango doctor` as a person at a terminal meets it."""

from __future__ import annotations

import json
import os

import pytest

from pipeline.runtime.child import Child

MACHINE = (
    "packages",
    "accelerators",
    "CPUs",
    "memory",
    "output",
    "cache",
    "temporary",
    "MLflow",
    "decord",
    "pyav",
    "torchcodec",
    "embedded model",
)


@pytest.fixture(scope="module")
def kept_child():
    """A child process for the checks of several commands: what they import is imported once."""
    child = Child()
    yield child
    child.close()


@pytest.fixture
def one_child(kept_child, tmp_path, monkeypatch):
    """Commands of this test use that process, in the test's directory, and leave it running."""
    kept_child.call(os.chdir, tmp_path, timeout_s=60, about="one_child")
    monkeypatch.setattr(kept_child, "close", lambda: None)
    monkeypatch.setattr("jobs.doctor.command.Child", lambda: kept_child)


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


@pytest.mark.usefixtures("one_child")
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


@pytest.mark.usefixtures("one_child")
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
        "output": "another --output",
        "cache": "nonsense://bucket",
        "MLflow": "MlflowException: API request to http://127.0.0.1:1",
        "model": "model.path /no/such",
        "methods": "retention must be in (0, 1], got 2",
        "benchmark": "benchmark.root 'nowhere' is not a folder",
        "Ray": "lower pools.compress.num_cpus",
    }
    assert problems.keys() == expected.keys(), problems
    for subject, part in expected.items():
        assert part in problems[subject]


@pytest.mark.usefixtures("one_child")
def test_without_a_valid_recipe_the_machine_is_checked(doctor):
    code, found = doctor("nothing.yaml")
    assert code == 1
    mark, text = found["recipe"]
    assert mark == "problem"
    assert "nothing.yaml" in text
    assert tuple(found) == ("recipe", *MACHINE, "Ray")
