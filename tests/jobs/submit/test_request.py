"""What is sent to a cluster: the command, its options and files, and what makes two jobs equal."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest
from fake_clock import FakeClock
from fake_head import fake_head

from jobs.config.recipe import parse_job
from jobs.submit import request
from jobs.submit.head import Head
from jobs.submit.request import (
    RECIPE_FILE,
    START_FILE,
    Request,
    kept_files,
    package_files,
    write_package,
)
from tango_core import __version__

ROOT = Path(__file__).parents[3]
RECIPE = {
    "benchmark": {"name": "shapes"},
    "model": {"name": "tiny"},
    "method": {"name": "tango", "retention": 0.1},
}


@pytest.fixture
def request_for():
    """`request_for(command=..., recipe={...})` builds a request."""

    def build(recipe=None, **changes):
        jobs = (parse_job({**RECIPE, **(recipe or {})}, "recipe.yaml"),)
        sent = {"jobs": jobs, "recipe": "method: {}", "recipe_name": "recipe.yaml"}
        return Request(**{"command": "evaluate", **sent, **changes})

    return build


def test_the_entry_point_checks_the_version_and_continues(request_for):
    request = request_for(version="1.2", options=("--output", "s3://a b/runs"), directory="~/my x")
    before = "exec python tango_start.py --version 1.2 --directory '~/my x' -- "
    after = "evaluate --address auto --continue --output 's3://a b/runs'"
    assert request.entrypoint == before + after
    for changes in ({"new": True}, {"command": "precompute"}, {"options": ("--resume=runs/x",)}):
        assert "--continue" not in request_for(**changes).entrypoint


def test_a_job_is_recognized_by_recipe_command_options_and_directory(request_for):
    first = request_for(user="anna", recipe={"executor": "local"})
    again = request_for(user="ben", version="2.0", recipe={"max_failures": 3})
    assert first.is_same(again.metadata)
    for other in (
        request_for(recipe={"limit": 3}),
        request_for(options=("--output", "elsewhere")),
        request_for(directory="/data"),
        request_for(command="sweep"),
    ):
        assert not first.is_same(other.metadata)
    assert not first.is_same({})
    assert json.loads(first.metadata["tango_arguments"]) == ["~/tango"]


def test_a_password_in_a_url_is_refused_and_not_repeated(request_for):
    with pytest.raises(ValueError, match="contains a password or a token") as error:
        request_for(options=("--tracking-uri", "http://me:hunter2@mlflow:5000"))
    assert "hunter2" not in str(error.value)


@pytest.mark.parametrize(
    ("posts", "new"), [(["busy", "busy", "accept"], False), (["lose", "accept"], True)]
)
def test_a_job_is_sent_once_even_if_the_head_is_not_ready(request_for, posts, new):
    request = request_for(new=new)
    with fake_head(posts=posts) as head:
        job_id, is_new = Head(head.url, FakeClock()).submit(request, {})
        assert is_new
        (job,) = head.sent
    assert job["submission_id"] == job_id == f"tango-{request.digest[:10]}-1"
    assert job["entrypoint"] == request.entrypoint
    assert job["metadata"] == request.metadata


def test_the_same_job_is_found_and_new_starts_another(request_for):
    with fake_head() as head:
        client = Head(head.url)
        first, _ = client.submit(request_for(), {})
        assert client.submit(request_for(user="somebody else"), {}) == (first, False)
        assert client.submit(request_for(new=True), {}) == (first[:-1] + "2", True)
        assert client.submit(request_for(directory="/data"), {})[1]
        assert len(head.sent) == 3


@pytest.fixture
def tree(tmp_path):
    """A directory with ignored files, secrets and a virtual environment."""
    root = tmp_path / "tree"
    for name, text in {
        ".gitignore": "*.log\n/data\n!important.log\n",
        "own_methods.py": "A = 1\n",
        "notes.log": "",
        "important.log": "",
        "data/video.mp4": "",
        "deep/data/table.csv": "",
        "deep/.gitignore": "private*\n",
        "deep/private.txt": "",
        "deep/__pycache__/x.pyc": "",
        "deep/env/pyvenv.cfg": "",
        "deep/env/bin/activate": "",
        ".env": "",
        "deep/.netrc": "",
        ".aws/credentials": "",
        "keys.py": "",
        "id_rsa.pub": "",
    }.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return root


@pytest.mark.parametrize("in_git", [False, True])
def test_ignored_files_secrets_and_environments_stay_here(tree, caplog, in_git):
    if in_git:
        subprocess.run(["git", "init", "-q", tree], check=True)
    kept = {path.relative_to(tree).as_posix() for path in kept_files(tree)}
    secrets = {".env", "deep/.netrc", ".aws/credentials"}
    sent = {".gitignore", "own_methods.py", "important.log", "deep/data/table.csv"}
    sent |= {"deep/.gitignore", "keys.py", "id_rsa.pub"}
    assert kept == sent | secrets
    assert package_files(tree).keys() == sent
    assert "not uploaded, because it looks like a secret: " in caplog.text
    assert package_files(tree, include=[Path(".env")]).keys() == sent | {".env"}


def test_a_package_holds_recipe_starter_and_files(tree, tmp_path):
    target = tmp_path / "package.zip"
    files = package_files(tree, with_code=True)
    write_package(target, "method: {}\n", files)
    with zipfile.ZipFile(target) as package:
        content = {name: package.read(name) for name in package.namelist()}
    assert content.keys() == {*files, RECIPE_FILE, START_FILE}
    assert content[RECIPE_FILE] == b"method: {}\n"
    assert b"runpy" in content[START_FILE]
    assert content["own_methods.py"] == b"A = 1\n"
    ours = {"tango_core/tiny/model.safetensors", "jobs/report/templates/report.html.j2"}
    assert ours | {"pipeline/__init__.py", "jobs/cli/entry.py"} <= set(content)
    assert not [name for name in content if name.endswith(".pyc") or name.startswith("tests")]
    assert target.stat().st_size < 20_000_000


def test_a_directory_that_is_too_large_is_refused(tree, monkeypatch):
    monkeypatch.setattr(request, "MAX_BYTES", 1000)
    (tree / "model.bin").write_bytes(b"x" * 5000)
    with pytest.raises(ValueError, match=r"8 file\(s\) of 5\.0 kB exceed the maximum of 1\.0 kB"):
        package_files(tree)


@pytest.fixture
def start(tmp_path):
    """`start(*arguments)` runs the script of a package; `python` are options of the interpreter."""
    target, unpacked = tmp_path / "package.zip", tmp_path / "unpacked"
    recipe = "benchmark: {name: shapes}\nmodel: {name: tiny}\nmethod: {name: full}\n"
    write_package(target, recipe, {})
    zipfile.ZipFile(target).extractall(unpacked)

    def run(*arguments, python=()):
        done = subprocess.run(
            [sys.executable, *python, "tango_start.py", *map(str, arguments)],
            cwd=unpacked,
            env={**os.environ, "PYTHONPATH": str(ROOT), "PLACE": str(tmp_path / "place")},
            capture_output=True,
            text=True,
            timeout=240,
        )
        assert done.returncode == 2
        return done.stderr.splitlines()

    return run


@pytest.mark.parametrize(
    ("options", "python", "parts"),
    [
        (["--version", "0.0.1", "--directory", "."], [], ["0.0.1 on the client", "--with-code"]),
        # Without its site-packages an interpreter has no distributions.
        (
            ["--version", __version__, "--directory", "."],
            ["-S", "-I"],
            ["tango-video is missing for", f"tango-video[all]=={__version__}"],
        ),
        (["--directory", "/dev/null/x"], [], ["--directory /dev/null/x cannot be used on the cl"]),
    ],
)
def test_what_the_cluster_lacks_is_one_line(start, options, python, parts):
    (line,) = start(*options, "--", "sweep", python=python)
    assert all(part in line for part in parts)


def test_the_command_runs_in_its_directory_and_its_exit_code_is_kept(start, tmp_path):
    first, last = start("--directory", "$PLACE/new", "--", "evaluate", "--limit", "none")
    assert first.endswith(f"in {tmp_path}/place/new")
    assert (tmp_path / "place" / "new").is_dir()
    assert last.startswith("tango: ")
    assert "got 'none'" in last
