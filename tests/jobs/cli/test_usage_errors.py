"""Wrong command lines end in one line each; right ones, help and codes are as typer has them."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest
import typer
from typer.main import get_command

from jobs.cli import main


@pytest.mark.parametrize(
    ("arguments", "option"),
    [
        (["report", "run", "--output", ""], "--output"),
        (["evaluate", "recipe.yaml", "--output", ""], "--output"),
        (["cache", "ls", "--cache", ""], "--cache"),
        (["ask", "", "Why?"], "video"),
    ],
)
def test_a_place_is_not_empty_as_of_a_variable_that_is_not_set(tango, arguments, option):
    code, out, err = tango(*arguments)
    assert (code, out) == (2, "")
    assert err.lower().startswith(f"tango: invalid value for '{option}': it is empty; see")


@pytest.mark.parametrize(
    ("arguments", "rich", "code"),
    [
        ([], "1", 2),
        ([], "0", 2),
        (["data"], "0", 2),
        (["--help"], "1", 0),
        (["evaluate", "--help"], "0", 0),
    ],
)
def test_help_is_shown_when_asked_for_and_where_nothing_is(arguments, rich, code):
    done = subprocess.run(
        [sys.executable, "-m", "jobs.cli.main", *arguments],
        env={**os.environ, "TYPER_USE_RICH": rich},
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert done.returncode == code
    assert (done.stdout + done.stderr).count("Usage:") == 1
    assert "Traceback" not in done.stderr


def _raising(error):
    def how():
        raise error

    return how


@pytest.mark.parametrize(
    ("how", "code"),
    [
        (lambda: None, 0),
        (lambda: 1, 1),
        (_raising(typer.Exit(1)), 1),
        (_raising(typer.Abort()), 1),
        (_raising(KeyboardInterrupt()), 130),
    ],
)
def test_a_command_leaves_with_its_own_code(tango, monkeypatch, how, code):
    app = typer.Typer()
    app.command()(how)
    monkeypatch.setattr("jobs.cli.main.app", app)
    assert tango()[0] == code


def _commands(command, path=("tango",)):
    """Path and parameters of every command."""
    if not hasattr(command, "commands"):
        yield " ".join(path), command.params
    for name, inner in getattr(command, "commands", {}).items():
        yield from _commands(inner, (*path, name))


def test_every_parameter_has_help():
    for path, parameters in _commands(get_command(main.app)):
        assert [one.name for one in parameters if one.name != "help" and not one.help] == [], path


@pytest.mark.parametrize(
    ("line", "shown"),
    [
        ("data get --help", ["[default: main]", "[default: the usual one]", "[default: 4"]),
        ("ask --help", ["[default: its own]", "[default: 0.1]", "[default: the model's]"]),
        ("export --help", ["[default: RUN/export/FORMAT]"]),
    ],
)
def test_help_shows_defaults_that_a_command_chooses_itself(tango, monkeypatch, line, shown):
    monkeypatch.setenv("COLUMNS", "300")
    code, out, _ = tango(*line.split())
    assert code == 0
    lines = " ".join(out.replace("│", " ").split())
    for text in shown:
        assert text in lines
    assert "\\[" not in out
