"""What starts a job on the cluster, run as Ray runs it: in an unpacked package."""

from __future__ import annotations

import os
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

from jobs.submit.package import write_package
from tango_core import __version__

ROOT = Path(__file__).parents[3]


@pytest.fixture
def start(tmp_path):
    """`start(*arguments)` runs the script of a package; `python` are options of the interpreter."""
    target, unpacked = tmp_path / "package.zip", tmp_path / "unpacked"
    recipe = "benchmark: {name: shapes}\nmethod: {name: full}\nlimit: 1\nexecutor: local\n"
    write_package(target, recipe, {})
    zipfile.ZipFile(target).extractall(unpacked)

    def run(*arguments, python=()):
        return subprocess.run(
            [sys.executable, *python, "tango_start.py", *map(str, arguments)],
            cwd=unpacked,
            env={**os.environ, "PYTHONPATH": str(ROOT), "PLACE": str(tmp_path / "place")},
            capture_output=True,
            text=True,
            timeout=240,
        )

    return run


def test_another_version_on_the_cluster_is_one_line(start):
    done = start("--version", "0.0.1", "--directory", ".", "--", "sweep")
    assert done.returncode == 2
    (line,) = done.stderr.splitlines()
    assert "and the client 0.0.1" in line
    assert "--with-code" in line


def test_a_cluster_without_tango_is_one_line(start):
    # Without its site-packages an interpreter has no distributions.
    done = start("--version", __version__, "--directory", ".", "--", "sweep", python=["-S", "-I"])
    assert done.returncode == 2
    (line,) = done.stderr.splitlines()
    assert "tango-video is not installed for" in line
    assert f"tango-video[all]=={__version__}" in line


def test_the_command_runs_in_its_directory_and_its_exit_code_is_kept(start, tmp_path):
    done = start("--directory", "$PLACE/new", "--", "evaluate", "--limit", "none")
    assert done.returncode == 2
    first, last = done.stderr.splitlines()
    assert first.endswith(f"in {tmp_path}/place/new")
    assert (tmp_path / "place" / "new").is_dir()
    assert last.startswith("tango: ")
    assert "got 'none'" in last


def test_a_directory_that_cannot_be_made_is_one_line(start):
    done = start("--directory", "/dev/null/x", "--", "evaluate")
    assert done.returncode == 2
    (line,) = done.stderr.splitlines()
    assert "--directory /dev/null/x cannot be used on the cluster" in line
