"""Every command and every block of code in a README does what it says, or says what it needs.

A line that ends in `# needs a GPU`, `# needs the hub`, `# needs a cluster`, `# needs data`,
`# needs containers`, `# needs Debian packages` or `# needs vLLM` is not run. The others run one
after the other in one directory, where `recipe.yaml`, `clip.mp4`, the runs `RUN` and `OTHER`, and
`jobs/recipes` are prepared. A block of Python that begins with a file's name in a comment is saved
in that file, too.
"""

from __future__ import annotations

import glob
import json
import re
import shlex
import shutil
import subprocess
import sys
import textwrap
import tomllib
from pathlib import Path

import pytest
import typer
from documented import DOCUMENTS, ROOT, Example, examples, text_of

from jobs.cli.main import app, main
from jobs.config.overrides import RECIPES

RECIPE = {
    "benchmark": {"name": "shapes"},
    "model": {"name": "tiny", "num_frames": 8},
    "methods": [{"name": "full"}, *({"name": it, "retention": 0.1} for it in ("topk", "tango"))],
    "executor": "local",
    "limit": 2,
}
# What makes a recipe of the package short.
SHORT = ["--limit", "1", "--set", "executor=local"]
# Tables of many cells, whose figures and MLflow runs take longer than their answers; nobody looks
# at them here.
LARGE = re.compile(r"runs/shapes_(table|controls)")
NO_SERVER = ["--tracking-uri", "http://127.0.0.1:9"]
# `tests/integration/test_recipes.py` runs them.
ELSEWHERE = re.compile(r"tango sweep jobs/recipes/\w+\.yaml --set model.name=tiny --set benchmark")


def is_runnable(example: Example) -> bool:
    """Whether this test runs it."""
    return example.needs is None and not ELSEWHERE.match(example.text)


RUNNABLE = [example for example in examples() if is_runnable(example)]


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A directory in which the documents' commands find what they name."""
    folder = tmp_path_factory.mktemp("reader")
    (folder / "jobs").symlink_to(ROOT / "jobs")
    (folder / "recipe.yaml").write_text(json.dumps(RECIPE))
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        for name in ("RUN", "OTHER"):
            assert tango(patch, ["sweep", "recipe.yaml", "--output", f"{name}s"]) == 0
            (run,) = (path.parent for path in (folder / f"{name}s").glob("*/job.yaml"))
            shutil.copytree(run, folder / name)
        (folder / "RUNs").rename(folder / "runs")
    shutil.copy(next((folder / "data").rglob("*.mp4")), folder / "clip.mp4")
    return folder


def tango(patch, arguments):
    """Exit code of the console script."""
    patch.setattr(sys, "argv", ["tango", *arguments])
    # The command ends its process where Ray or a thread is still at work, which is pytest's here.
    patch.setattr("jobs.cli.main.leave", sys.exit)
    with pytest.raises(SystemExit) as stop:
        main()
    return stop.value.code or 0


def run_command(patch, command):
    """Run one line; of `make` and `pip` only what they would do is checked."""
    words = shlex.split(re.sub(r"^([A-Z_]+=\S+ )+", "", command), comments=True)
    program, *arguments = words
    if program == "make":
        subprocess.run(["make", "--dry-run", *arguments], cwd=ROOT, check=True, timeout=60)
    elif words[:2] == ["pip", "install"]:
        project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
        (extras,) = re.findall(rf"{project['name']}(?:\[(.*)\])?", " ".join(arguments))
        assert set(filter(None, extras.split(","))) <= set(project["optional-dependencies"])
    elif program == "tango":
        expanded = [path for word in arguments for path in sorted(glob.glob(word)) or [word]]
        shipped = [
            word
            for word in arguments
            if "jobs/recipes/" in word or (RECIPES / f"{word}.yaml").is_file()
        ]
        short = SHORT if shipped else []
        if arguments[0] == "sweep" and LARGE.search(command):
            short = [*short, *NO_SERVER]
        allowed = (0, 1) if arguments[0] == "doctor" else (0,)  # 1: the machine lacks something
        assert tango(patch, [*expanded, *short]) in allowed
    else:
        pytest.fail(f"nobody runs {command!r}; add it here, or `# needs ...` behind it")


def run_python(code):
    """Run a block, and save it under the name that its first line may give."""
    name = re.match(r"# ([\w/]+\.py)\n", code)
    if name:
        path = Path(name[1])
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(code)
    exec(compile(code, name[1] if name else "README", "exec"), {"__name__": "documented"})


@pytest.mark.slow
@pytest.mark.parametrize("example", RUNNABLE, ids=str)
def test_what_is_documented_runs(folder, monkeypatch, example):
    monkeypatch.chdir(folder)
    if example.language == "console":
        run_command(monkeypatch, example.text)
    elif example.language == "python":
        run_python(textwrap.dedent(example.text))
    else:
        import duckdb

        assert duckdb.sql(re.sub("--.*", "", example.text)).fetchall()


@pytest.mark.parametrize("document", DOCUMENTS)
def test_commands_in_the_text_have_the_options_they_are_shown_with(document):
    for span in re.findall(r"`(tango [^`]+)`", text_of(document)):
        _, *words = re.split(r"[\s\[\]]+", span.replace("\\|", " "))
        command = typer.main.get_command(app)
        while words and words[0] in getattr(command, "commands", {}):
            command = command.commands[words.pop(0)]
        known = {option for parameter in command.params for option in parameter.opts}
        assert not hasattr(command, "commands") or not words or words[0] in ("COMMAND", "..."), span
        shown = {word for word in words if word.startswith("--")} - {"--"}
        assert shown <= known | {"--help"}, span
