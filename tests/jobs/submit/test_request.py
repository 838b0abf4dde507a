"""What is sent: the command, its options, and what makes two jobs the same."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest
import yaml
from fake_clock import FakeClock
from fake_head import fake_head

from jobs.config.recipe import load_jobs
from jobs.submit import request
from jobs.submit.head import Head, HeadLostError, next_id
from jobs.submit.request import (
    RECIPE_FILE,
    START_FILE,
    PackageError,
    jobs_to_submit,
    kept_files,
    package_files,
    size_line,
    write_package,
)
from tango_core import __version__


def test_the_entry_point_checks_the_version_and_continues(request_for):
    request = request_for(version="1.2", options=("--output", "s3://a b/runs"), directory="~/my x")
    before = "exec python tango_start.py --version 1.2 --directory '~/my x' -- "
    after = "evaluate --address auto --continue --output 's3://a b/runs'"
    assert request.entrypoint == before + after


@pytest.mark.parametrize(
    "changes", [{"new": True}, {"command": "precompute"}, {"options": ("--resume", "runs/x")}]
)
def test_a_job_that_names_its_run_or_needs_none_does_not_look_for_one(request_for, changes):
    assert "--continue" not in request_for(**changes).entrypoint


def test_a_recipe_of_several_jobs_is_sent_whole(request_for, tmp_path):
    request = request_for(counts=[4, 8])
    path = tmp_path / "sent.yaml"
    path.write_text(request.recipe)
    assert load_jobs(path) == request.jobs
    assert yaml.safe_load(request.recipe)["model"]["num_frames"] == [4, 8]
    assert request.digest != request_for(counts=[4]).digest


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ([], "evaluate"),
        (["model.num_frames=[4,8]"], "sweep"),
        (["method.retention=[0.1,0.2]"], "sweep"),
    ],
)
def test_one_method_is_evaluated_and_several_are_swept(tmp_path, request_for, changes, expected):
    path = tmp_path / "recipe.yaml"
    path.write_text(request_for().recipe)
    assert jobs_to_submit(path, changes, None)[0] == expected


def test_the_same_job_is_known_by_what_it_does_and_where(request_for):
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
    request_for(options=("--tracking-uri", "http://mlflow:5000", "--output", "s3://bucket/runs"))
    with pytest.raises(ValueError, match="--tracking-uri contains a password or a token") as error:
        request_for(options=("--tracking-uri", "http://me:hunter2@mlflow:5000"))
    assert "hunter2" not in str(error.value)


def test_ids_count_the_attempts_of_one_job():
    class Job:
        def __init__(self, submission_id):
            self.submission_id = submission_id

    digest = "0123456789abcdef"
    assert next_id(digest, []) == "tango-0123456789-1"
    known = [Job("tango-0123456789-9"), Job("tango-0123456789-10"), Job("tango-ffffffffff-77")]
    assert next_id(digest, known) == "tango-0123456789-11"
    assert next_id(digest, [Job("tango-0123456789-²")]) == "tango-0123456789-1"


def test_a_head_that_is_not_ready_is_asked_again(request_for):
    request = request_for()
    with fake_head(posts=["busy", "busy", "accept"]) as head:
        job_id, is_new = Head(head.url).submit(request, {}, clock=FakeClock())
        assert is_new
        (job,) = head.sent
    assert job["submission_id"] == job_id == f"tango-{request.digest[:10]}-1"
    assert job["entrypoint"] == request.entrypoint
    assert job["metadata"] == request.metadata


@pytest.mark.parametrize("new", [False, True])
def test_a_job_whose_answer_was_lost_is_not_sent_twice(request_for, new):
    with fake_head(posts=["lose", "accept"]) as head:
        sent = Head(head.url).submit(request_for(new=new), {}, clock=FakeClock())
        assert [job["submission_id"] for job in head.sent] == [sent[0]]


def test_the_same_job_is_found_and_new_starts_another(request_for):
    with fake_head() as head:
        client = Head(head.url)
        first, _ = client.submit(request_for(), {})
        assert client.submit(request_for(user="somebody else"), {}) == (first, False)
        assert client.submit(request_for(new=True), {}) == (first[:-1] + "2", True)
        assert client.submit(request_for(directory="/data"), {})[1]
        assert len(head.sent) == 3


def test_a_head_that_never_is_ready_is_one_line(request_for):
    clock = FakeClock()
    with fake_head(posts=["busy"]) as head, pytest.raises(HeadLostError) as error:
        Head(head.url).submit(request_for(), {}, clock=clock)
    assert clock.passed_s >= 60
    assert "\n" not in str(error.value)


TREE = {
    ".gitignore": "*.log\nbuild/\n/data\n!important.log\n",
    "own_methods.py": "A = 1\n",
    "notes.log": "",
    "important.log": "",
    "build/out.py": "",
    "data/video.mp4": "",
    "deep/data/table.csv": "",
    "deep/.gitignore": "secret*\n!kept.log\n",
    "deep/secret.txt": "",
    "deep/kept.log": "",
    "deep/other.log": "",
    "deep/build/x.py": "",
    "deep/__pycache__/x.pyc": "",
}


@pytest.fixture
def tree(tmp_path):
    root = tmp_path / "tree"
    for name, text in TREE.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return root


def packed(path):
    """Name -> content of a package."""
    with zipfile.ZipFile(path) as content:
        return {name: content.read(name) for name in content.namelist()}


def test_the_files_are_those_that_git_would_add(tree):
    kept = {path.relative_to(tree).as_posix() for path in kept_files(tree)}
    assert "deep/kept.log" in kept
    subprocess.run(["git", "init", "-q", tree], check=True)
    listed = subprocess.run(
        ["git", "ls-files", "--others", "--exclude-standard"],
        cwd=tree,
        capture_output=True,
        text=True,
        check=True,
    )
    assert kept == set(listed.stdout.split()) - {"deep/__pycache__/x.pyc"}
    assert {path.relative_to(tree).as_posix() for path in kept_files(tree)} == kept


def test_a_virtual_environment_is_left_out(tree):
    before = list(kept_files(tree))
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", tree / "deep/env"], check=True)
    assert (tree / "deep/env/bin/activate").is_file()
    assert list(kept_files(tree)) == before


def test_a_package_holds_recipe_starter_and_the_tree(tree, tmp_path):
    target = tmp_path / "package.zip"
    files = package_files(tree)
    write_package(target, "method: {}\n", files)
    content = packed(target)
    assert len(content) == len(files) + 2
    assert size_line(files).startswith(f"{len(files)} files of ")
    assert content[RECIPE_FILE] == b"method: {}\n"
    assert b"runpy" in content[START_FILE]
    assert content["own_methods.py"] == b"A = 1\n"
    assert "data/video.mp4" not in content


def test_equal_content_gives_equal_bytes(tree, tmp_path):
    first, second = tmp_path / "first.zip", tmp_path / "second.zip"
    write_package(first, "a: 1\n", package_files(tree))
    (tree / "own_methods.py").touch()  # another time, the same content
    write_package(second, "a: 1\n", package_files(tree))
    assert first.read_bytes() == second.read_bytes()


def test_the_code_of_this_installation_goes_along(tmp_path):
    target = tmp_path / "package.zip"
    write_package(target, "a: 1\n", package_files(None, with_code=True))
    content = packed(target)
    assert {
        "tango_core/tiny/model.safetensors",
        "pipeline/__init__.py",
        "jobs/cli/entry.py",
        "jobs/report/templates/report.html.j2",
    } <= set(content)
    assert not [name for name in content if name.endswith(".pyc") or name.startswith("tests")]
    assert target.stat().st_size < 20_000_000


def test_a_directory_that_is_too_large_is_refused_with_its_largest_files(
    tree, tmp_path, monkeypatch
):
    monkeypatch.setattr(request, "MAX_BYTES", 1000)
    (tree / "model.bin").write_bytes(b"x" * 5000)
    (tree / "small.bin").write_bytes(b"x" * 10)
    with pytest.raises(PackageError, match=r"the largest are model\.bin \(5\.0 kB\)") as error:
        write_package(tmp_path / "package.zip", "a: 1\n", package_files(tree))
    assert "\n" not in str(error.value)
    (tree / ".gitignore").write_text("model.bin\n")
    write_package(tmp_path / "package.zip", "a: 1\n", package_files(tree))


def names_of(tree, paths):
    return {path.relative_to(tree).as_posix() for path in paths}


def test_rules_above_the_directory_hold(tree):
    inner = tree / "deep" / "inner"
    inner.mkdir()
    (tree / ".gitignore").write_text("*.log\nprivate.txt\n")
    for name in ("private.txt", "secret.py", "method.py"):
        (inner / name).touch()
    subprocess.run(["git", "init", "-q", tree], check=True)
    (tree / ".git/info/exclude").write_text("method.py\n")
    assert names_of(inner, kept_files(inner)) == set()


@pytest.mark.parametrize("in_git", [True, False])
def test_what_looks_like_a_secret_is_left_out_and_named(tree, in_git, caplog):
    secrets = {".env", "deep/.netrc", "id_rsa", "server.pem", "tls.key", ".aws/credentials"}
    for name in (*secrets, ".env.example", "id_rsa.pub", "keys.py", "tokenizer.json"):
        (tree / name).parent.mkdir(exist_ok=True)
        (tree / name).touch()
    if in_git:
        subprocess.run(["git", "init", "-q", tree], check=True)
    assert not secrets & package_files(tree).keys()
    sent = package_files(tree, include=[Path(".env")])
    assert secrets & sent.keys() == {".env"}
    assert {".env.example", "id_rsa.pub", "keys.py", "tokenizer.json"} <= sent.keys()
    assert "not uploaded, because it looks like a secret: " in caplog.text
    assert "server.pem" in caplog.text
    with pytest.raises(PackageError, match=r"--include gone: no such file in --working-dir"):
        package_files(tree, include=[Path("gone")])


@pytest.mark.parametrize("in_git", [True, False])
@pytest.mark.parametrize("is_folder", [True, False])
def test_a_link_that_leads_out_is_refused_by_name(tree, tmp_path, in_git, is_folder):
    outside = tmp_path / "outside"
    outside.mkdir() if is_folder else outside.touch()
    (tree / "deep" / "link").symlink_to(outside)
    (tree / "deep" / "fine.py").symlink_to(tree / "own_methods.py")
    if in_git:
        subprocess.run(["git", "init", "-q", tree], check=True)
    with pytest.raises(PackageError, match=r"deep/link is a link that leads out of it"):
        package_files(tree)
    (tree / "deep" / "link").unlink()
    assert "deep/fine.py" in package_files(tree)


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
