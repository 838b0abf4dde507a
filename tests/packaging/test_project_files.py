"""Versions, workflows and forms are consistent across the project's files."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path

import yaml
from packaging.requirements import Requirement
from packaging.specifiers import SpecifierSet

import tango_core

ROOT = Path(__file__).parents[2]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]


def loaded(name):
    """Content of a YAML file of the repository."""
    return yaml.safe_load((ROOT / name).read_text())


def promised():
    """Python versions of the classifiers."""
    return re.findall(r"Python :: (3\.\d+)", " ".join(PROJECT["classifiers"]))


def test_the_version_is_the_same_everywhere():
    versions = PROJECT["version"], tango_core.__version__, loaded("CITATION.cff")["version"]
    assert len(set(versions)) == 1
    newest = re.search(r"^## (.+)$", (ROOT / "CHANGELOG.md").read_text(), re.MULTILINE)
    beginning = PROJECT["version"].rpartition(".")[0]
    assert newest is not None
    assert newest[1] in (PROJECT["version"], f"Unreleased ({beginning})")


def test_every_declared_python_version_is_tested():
    assert promised() == ["3.11", "3.12", "3.13", "3.14"]
    allowed = SpecifierSet(PROJECT["requires-python"])
    assert all(allowed.contains(version) for version in promised())
    assert not allowed.contains("3.10")
    strategy = loaded(".github/workflows/test.yml")["jobs"]["test"]["strategy"]
    assert strategy["matrix"]["python-version"] == promised()


def test_every_package_has_an_exact_version_in_its_range():
    lines = (ROOT / "infra/constraints.txt").read_text().splitlines()
    exact = [Requirement(line) for line in lines if line and not line.startswith("#")]
    versions = {_plain(one.name): str(one.specifier).removeprefix("==") for one in exact}
    extras = PROJECT["optional-dependencies"]
    named = [*PROJECT["dependencies"], *(line for extra in extras.values() for line in extra)]
    for wanted in map(Requirement, named):
        if wanted.name not in (PROJECT["name"], "torchcodec"):  # its version follows torch's
            assert wanted.specifier.contains(versions[_plain(wanted.name)]), wanted


def _plain(name):
    """A distribution's name as indexes compare it."""
    return re.sub(r"[-_.]+", "-", name).lower()


def test_workflows_run_targets_that_exist():
    targets = set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), re.M))
    scripts = [*(ROOT / ".github/workflows").iterdir(), ROOT / ".ci/run"]
    text = "\n".join(map(Path.read_text, scripts))
    commands = re.findall(r"\bmake((?: [\w=-]+)+)(?: \|\||$)", text, re.M)
    used = {word for words in commands for word in words.split() if not word.startswith("-")}
    assert {"lint", "wheel", "test", "test-all"} <= used
    assert used <= targets
