"""Which commands work with which extras, and the error if one is missing."""

from __future__ import annotations

import os
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest
from packaging.requirements import Requirement

from jobs.extras import EXTRAS, STORES

ROOT = Path(__file__).parents[2]
RECIPE = ROOT / "jobs/recipes/shapes_tiny.yaml"
IMPORTED_AS = {"pillow": "PIL", "pyyaml": "yaml", "zlib-ng": "zlib_ng"}


@pytest.fixture(scope="module")
def run_with(tmp_path_factory):
    """`run_with(extras, *arguments)` runs Python where only these extras can be imported."""
    folders: dict[tuple[str, ...], Path] = {}

    def run(extras: tuple[str, ...], *arguments: object) -> subprocess.CompletedProcess[str]:
        if extras not in folders:
            folders[extras] = tmp_path_factory.mktemp("packages")
            script = ROOT / "infra/linked_packages.py"
            subprocess.run([sys.executable, script, folders[extras], *extras], check=True)
        return subprocess.run(
            # Without site, PYTHONPATH is all there is besides the standard library.
            [sys.executable, "-S", *map(str, arguments)],
            env={**os.environ, "PYTHONPATH": os.pathsep.join([str(folders[extras]), str(ROOT)])},
            cwd=folders[extras].parent,
            capture_output=True,
            text=True,
            timeout=240,
        )

    return run


def test_the_compressors_run_with_numpy_and_torch_alone(run_with):
    done = run_with((), ROOT / "infra/minimal_use.py")
    assert done.returncode == 0, done.stderr
    assert "tango: 144 of 288 tokens" in done.stdout


@pytest.mark.parametrize(
    ("installed", "command", "missing"),
    [
        ((), ["--help"], "jobs"),
        (("models", "pipeline"), ["evaluate", RECIPE], "jobs"),
        (("pipeline", "jobs"), ["evaluate", RECIPE, "--limit", 1], "models"),
        (("jobs",), ["evaluate", RECIPE, "--limit", 1], "pipeline"),
        (("models", "pipeline", "jobs"), ["cache", "ls", "--cache", "s3://bucket/cache"], "s3"),
        (("models", "pipeline", "jobs"), ["cache", "ls", "--cache", "gs://bucket/cache"], "gcs"),
    ],
)
def test_a_missing_extra_is_a_one_line_error(run_with, installed, command, missing):
    done = run_with(installed, "-m", "jobs.cli.entry", *command)
    assert done.returncode == 2
    *said, line = done.stderr.splitlines()
    assert said == []
    assert f"the extra {missing!r}: pip install 'tango-video[{missing}]'" in line


def test_the_modules_of_every_extra_are_those_of_the_project():
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    for extra, modules in EXTRAS.items():
        names = [Requirement(line).name for line in project["optional-dependencies"][extra]]
        assert set(modules) == {IMPORTED_AS.get(name, name) for name in names}
    usual = ",".join(extra for extra in EXTRAS if extra not in STORES)
    assert project["optional-dependencies"]["all"] == [f"tango-video[{usual}]"]
