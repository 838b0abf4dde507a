"""Versions, workflows, metrics and extras agree across the project's files."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest
import yaml
from packaging.requirements import Requirement
from packaging.specifiers import SpecifierSet

import tango_core
from jobs.extras import EXTRAS, STORES
from pipeline.metrics import METRICS

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


RECORDING = ROOT / "tests/fixtures/prometheus/job.om"
DASHBOARD = json.loads((ROOT / "infra/grafana/tango.json").read_text())
QUERIES = {
    f"{panel['title']}/{target['refId']}": target["expr"]
    for panel in DASHBOARD["panels"]
    for target in panel["targets"]
}
METRIC = re.compile(r"\bray_\w+")
OURS = {name for metric in METRICS for name in metric.exported}


def recorded():
    """The names in the recording."""
    return {line.partition("{")[0] for line in RECORDING.read_text().splitlines()}


def test_every_metric_of_the_dashboard_is_emitted():
    asked = {name for query in QUERIES.values() for name in METRIC.findall(query)}
    assert {name for name in asked if name.startswith("ray_tango_")} <= OURS
    assert {name for name in asked if not name.startswith("ray_tango_")} <= recorded(), "Ray's own"


def test_every_metric_is_in_the_recording():
    assert recorded() >= OURS


@pytest.mark.system
def test_prometheus_can_parse_every_query(tmp_path):
    rules = [
        # Grafana's variables are replaced; the rate interval is four scrapes.
        {"record": f"panel:{at}", "expr": one.replace("$__rate_interval", "60s")}
        for at, one in enumerate(QUERIES.values())
    ]
    file = tmp_path / "rules.yml"
    file.write_text(yaml.safe_dump({"groups": [{"name": "dashboard", "rules": rules}]}))
    command = ["promtool", "check", "rules", file]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr


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
    for extra, modules in EXTRAS.items():
        names = [Requirement(line).name for line in PROJECT["optional-dependencies"][extra]]
        assert set(modules) == {IMPORTED_AS.get(name, name) for name in names}
    usual = ",".join(extra for extra in EXTRAS if extra not in STORES)
    assert PROJECT["optional-dependencies"]["all"] == [f"tango-video[{usual}]"]
