"""Linters and schemas for the files of infra/ and the workflows."""

from __future__ import annotations

import subprocess

import pytest
from infra_files import compose_files, dockerfiles, name_of, program, shell_scripts, tracked


def check(*command):
    """Run a checker; what it prints is the reason of the failure."""
    done = subprocess.run([*map(str, command)], capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.parametrize("path", shell_scripts(), ids=name_of)
def test_shell_scripts_pass_shellcheck(path):
    check("bash", "-n", path)
    check(program("shellcheck"), path)


@pytest.mark.parametrize("path", dockerfiles(), ids=name_of)
def test_dockerfiles_follow_the_rules_of_hadolint(path):
    check(program("hadolint"), "--failure-threshold", "style", path)


@pytest.mark.parametrize("path", compose_files(), ids=name_of)
def test_compose_files_follow_the_schema_of_the_compose_specification(path):
    check(program("check-jsonschema"), "--builtin-schema", "vendor.compose-spec", path)


@pytest.mark.parametrize("path", tracked(".github/workflows"), ids=name_of)
def test_workflows_follow_their_schema(path):
    check(program("check-jsonschema"), "--builtin-schema", "vendor.github-workflows", path)
