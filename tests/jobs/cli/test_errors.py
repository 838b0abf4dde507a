"""What a user causes ends in one line and code 2; an error of the package shows its traceback."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
from filled_caches import fill
from fresh_python import printed_by
from jobs_for_tests import write_recipe
from typer.main import get_command

from jobs.cli import main

# What users get wrong => what the one line says, e.g. where a job is built from its recipe. `view`
# comes first: it would serve a run that a row behind it made, if that row were no longer refused.
MISTAKES = dict(
    row.split(" => ")
    for row in Path(__file__).with_name("user_errors.txt").read_text().splitlines()
)

# Runs one command after the other; prints exit code and text of each, and what is imported by then.
RUN_ALL = """
import contextlib, io, json, os, sys
os.chdir(sys.argv[1])
os.environ.pop("RAY_ADDRESS", None)
from jobs.cli.entry import main
ends = {}
for line in json.loads(sys.argv[2]):
    sys.argv = ["tango", *line.split()]
    text, code = io.StringIO(), None
    with contextlib.redirect_stdout(text), contextlib.redirect_stderr(text):
        try:
            main()
        except SystemExit as stop:
            code = stop.code
    imported = {name.partition(".")[0] for name in list(sys.modules)}
    ends[line] = code, text.getvalue(), sorted(imported)
print(json.dumps(ends))
"""
QUICK = ("", "data", "--help", "--version", "evaluate --help", "evaluate missing.yaml")


@pytest.fixture(scope="module")
def ends(tmp_path_factory):
    """Command line -> how it ended."""
    folder = tmp_path_factory.mktemp("folder")
    write_recipe(folder, limit=1)
    (folder / "film.mp4").write_bytes(b"\0\0\0\x20ftypisom")
    (folder / "semicolons.csv").write_text("video;question\na.mp4;Why?\n")
    (folder / "empty.mp4").touch()
    (folder / "empty").mkdir()
    (folder / "empty" / "config.json").write_text("{}")
    for name, text in (("nothing", None), ("broken", "[1"), ("other", "{}")):
        (folder / name).mkdir()
        if text:
            (folder / name / "job.yaml").write_text(text)
    (folder / "list.yaml").write_text("env_vars: [A=1]")
    cache = fill(folder / "caches", range(1)).name
    fill(folder / "caches", range(1), name="evs").storage.write("manifest.json", b"[]")
    names = {"HEAD": "--address http://127.0.0.1:9", "CACHE": cache}
    lines = {line: line for line in (*QUICK, *MISTAKES)}
    for line in lines:
        for name, text in names.items():
            lines[line] = re.sub(rf"\b{name}\b", text, lines[line])
    found = json.loads(printed_by(RUN_ALL, str(folder), json.dumps(list(lines.values()))))
    return {line: found[text] for line, text in lines.items()}


@pytest.mark.parametrize("line", MISTAKES)
def test_a_mistake_of_a_user_ends_in_one_line(ends, line):
    code, text, _ = ends[line]
    assert code == 2
    assert text.startswith("tango: ")
    assert MISTAKES[line] in text
    assert len(text.splitlines()) == 1


@pytest.mark.parametrize("line", QUICK)
def test_help_and_a_missing_file_do_not_wait_for_heavy_imports(ends, line):
    code, text, imported = ends[line]
    assert code == (2 if line in ("", "data", "evaluate missing.yaml") else 0)
    assert text.count("Usage:") == (not line or line == "data" or "--help" in line)
    heavy = {"torch", "transformers", "ray", "mlflow", "matplotlib", "pandas", "pyarrow", "scipy"}
    assert not heavy & set(imported)


@pytest.mark.parametrize(
    ("function", "error"),
    [
        ("jobs.config.recipe.expand_method", KeyError),
        ("tango_core.compressors.checked_options", TypeError),
        ("jobs.run.build.describe_model", ValueError),
        ("jobs.run.build.plan_methods", AssertionError),
    ],
)
def test_an_error_of_the_package_shows_its_traceback(tango, monkeypatch, tmp_path, function, error):
    def broken(*_: object, **__: object) -> None:
        raise error("object of type 'NoneType' has no len()")

    write_recipe(tmp_path, limit=1)
    monkeypatch.setattr(function, broken)
    code, _, err = tango("evaluate", "recipe.yaml")
    assert code == 1
    assert "Traceback (most recent call last)" in err
    assert f"{error.__name__}: " in err
    assert "in broken" in err
    assert "this is a bug in tango-video, not in your input; please report it" in err


@pytest.mark.parametrize(
    ("arguments", "option"),
    [
        (["report", "run", "--output", ""], "--output"),
        (["cache", "ls", "--cache", ""], "--cache"),
        (["ask", "", "Why?"], "video"),
    ],
)
def test_a_place_is_not_empty_as_of_a_variable_that_is_not_set(tango, arguments, option):
    code, out, err = tango(*arguments)
    assert (code, out) == (2, "")
    assert err.lower().startswith(f"tango: invalid value for '{option}': it is empty; see")


def _commands(command, path=("tango",)):
    """Path and parameters of every command; the lists of commands fit in 80 columns."""
    inside = getattr(command, "commands", {})
    for name, inner in inside.items():
        assert "..." not in inner.get_short_help_str(74 - max(map(len, inside))), name
        yield from _commands(inner, (*path, name))
    if not inside:
        yield " ".join(path), command.params


def test_every_parameter_has_help():
    for path, parameters in _commands(get_command(main.app)):
        assert [one.name for one in parameters if one.name != "help" and not one.help] == [], path
