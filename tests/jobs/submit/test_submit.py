"""`tango submit` and `tango jobs`: what is sent, how a head is asked, and mistakes."""

from __future__ import annotations

import json
import logging
import os
import signal
import subprocess
import sys
import threading
import zipfile
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from types import SimpleNamespace

import pytest
import yaml
from fake_clock import FakeClock
from fake_head import JOB, fake_head
from jobs_for_tests import RECIPE, write_recipe

from jobs.config.recipe import parse_job
from jobs.submit import request
from jobs.submit.head import Head, HeadError, HeadLostError, dashboard_url, exit_code
from jobs.submit.request import (
    RECIPE_FILE,
    START_FILE,
    Request,
    kept_files,
    package_files,
    read_runtime_env,
    write_package,
)
from pipeline.errors import ClusterError
from tango_core import __version__

# Nothing listens there: a command that sends something fails.
NOWHERE = ["--address", "http://127.0.0.1:9"]


@pytest.fixture
def recipe(tmp_path):
    return write_recipe(tmp_path)


def test_another_server_is_no_dashboard(tango, recipe):
    class Quiet(SimpleHTTPRequestHandler):
        def log_message(self, *_):
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Quiet) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        url = f"http://127.0.0.1:{server.server_port}"
        ends = [tango(*one, "--address", url) for one in (("submit", recipe), ("jobs", "list"))]
        server.shutdown()
    for code, out, err in ends:
        assert (code, out) == (2, "")
        assert err.startswith(f"tango: {url} refuses the request: Version check returned 404")
        assert "give the head's dashboard, by default http://head:8265" in err
        assert len(err.splitlines()) == 1


@pytest.mark.parametrize(
    "variable", ["HF_TOKEN", "DB_PASSWORD=short", "MODEL=https://me:topsecret9@hub/model"]
)
def test_a_secret_is_not_sent_where_all_can_read_it(tango, recipe, monkeypatch, tmp_path, variable):
    monkeypatch.setenv("HF_TOKEN", "topsecret9")
    name, _, value = variable.partition("=")
    file = tmp_path / "env.yaml"
    file.write_text(yaml.safe_dump({"env_vars": {name: value or "topsecret9"}}))
    for option in (["--env", variable], ["--runtime-env", file]):
        code, out, err = tango("submit", recipe, *NOWHERE, *option)
        assert (code, out) == (2, "")
        assert f"{name} looks like a secret" in err
        assert f"pass --env-visible {name}" in err
        assert len(err.strip().splitlines()) == 1, err
        assert "topsecret9" not in err
        assert "short" not in err
    found = {"env_vars": {name: value or "topsecret9"}}
    assert read_runtime_env(None, [], [variable]) == found
    assert read_runtime_env(file, [], [variable]) == found


def test_variables_are_text_and_the_place_of_a_secret_is_none(tmp_path):
    harmless = ["HF_TOKEN_PATH=/shared/hf", "MAX_TOKENS=512", "TOKENIZERS_PARALLELISM=false"]
    path = tmp_path / "env.yaml"
    path.write_text("env_vars: {OMP_NUM_THREADS: 1, A: true, B: b}")
    found = {"OMP_NUM_THREADS": "1", "A": "true", "B": "c", **dict(x.split("=") for x in harmless)}
    assert read_runtime_env(path, ["B=c", *harmless]) == {"env_vars": found}


def test_a_submitted_job_gets_the_options_as_they_are_written(tango, recipe):
    with fake_head(status="FAILED", exit_code=7) as head:
        arguments = ("--address", head.url, "--no-wait", "--", "--output", "~/runs")
        code, out, err = tango("submit", recipe, *arguments)
        (job,) = head.sent
        assert tango("submit", recipe, *arguments, "--set", "limit=3")[0] == 0
        assert head.sent[1]["metadata"]["tango_digest"] != job["metadata"]["tango_digest"]
    assert (code, out.strip()) == (0, job["submission_id"])
    assert job["entrypoint"].endswith("evaluate --address auto --continue --output '~/runs'")
    assert f"submitted {job['submission_id']} to {head.url}" in err


def test_jobs_are_listed_shown_and_end_with_their_code(tango):
    with fake_head(status="FAILED", exit_code=7) as head:
        where = ["--address", head.url]
        code, out, _ = tango("jobs", "list", *where)
        assert (code, out.split()[8:12]) == (0, [JOB, "FAILED", "7", "sweep"])
        code, out, _ = tango("jobs", "status", JOB[:9], *where)
        assert code == 0
        assert "exit code:   7" in out
        (plain,) = yaml.safe_load(tango("jobs", "status", JOB, "--json", *where)[1])
        assert (plain["id"], plain["exit_code"]) == (JOB, 7)
        assert tango("jobs", "logs", JOB, *where)[:2] == (0, head.log)
        code, out, err = tango("jobs", "logs", "-f", JOB, *where)
        assert (code, out) == (7, head.log)
        assert f"{JOB}: FAILED, exit code 7" in err
        head.exit_code = 127
        code, _, err = tango("jobs", "logs", "-f", JOB, *where)
        assert code == 127
        assert "set the Python interpreter with --python" in err


def test_a_log_that_nobody_reads_any_more_is_not_followed_to_its_end(tango, monkeypatch):
    readable, writable = os.pipe()
    os.close(readable)
    with (
        fake_head(status="RUNNING", exit_code=None) as head,
        open(writable, "w") as unread,
    ):
        monkeypatch.setattr(sys, "stdout", unread)
        code, _, err = tango("jobs", "logs", "-f", JOB, "--address", head.url)
    assert code == 0
    assert "tango: " not in err  # the head's own log is in it, too


@pytest.mark.parametrize(
    ("address", "url"),
    [
        ("head:8265/", "http://head:8265"),
        ("http://head/", "http://head:8265"),
        ("http://me:word@head", "http://me:word@head:8265"),
        ("http://[::1]", "http://[::1]:8265"),
        ("http://head:80", "http://head:80"),
        ("http://proxy/ray", "http://proxy/ray"),
        ("https://proxy", "https://proxy"),
    ],
)
def test_a_host_alone_is_asked_at_the_dashboards_port(monkeypatch, address, url):
    assert dashboard_url(address) == url
    monkeypatch.setenv("RAY_ADDRESS", address)
    assert dashboard_url(None) == url


def test_a_password_in_the_address_is_not_shown(tango):
    with fake_head() as head:
        address = head.url.replace("http://", "http://me:topsecret9@")
        _, out, err = tango("jobs", "logs", "-f", JOB, "--address", address)
    assert "topsecret9" not in out + err


def test_something_else_at_the_address_is_one_line(monkeypatch):
    with fake_head() as head:
        monkeypatch.setenv("RAY_ADDRESS", "http://127.0.0.1:9")  # less than what is given
        assert [job.submission_id for job in Head(head.url).jobs()] == [JOB]
        head.broken = 1
        with pytest.raises(HeadError, match="does not answer"):
            Head(head.url)
    with pytest.raises(ClusterError, match=r"no Ray cluster at .*http://head:8265"):
        Head(head.url)


def test_a_log_comes_once_and_whole():
    texts = []
    with fake_head(logs=["one\n", "one\ntwo\nth"], exit_code=None, status="RUNNING") as head:

        def write(text):
            texts.append(text)
            if len(texts) == 2:
                head.status, head.exit_code = "FAILED", 7

        details = Head(head.url, FakeClock()).follow(JOB, write)
    assert texts == ["one\n", "two\nth", "ree\n"]
    assert exit_code(details) == 7


def test_a_head_that_is_away_is_asked_again_and_given_up_after_two_minutes(caplog):
    clock, texts = FakeClock(), []
    with fake_head() as head:
        client = Head(head.url, clock)
        head.broken = 5
        with caplog.at_level(logging.WARNING):
            client.follow(JOB, texts.append)
    assert texts == [head.log]
    (line,) = caplog.messages
    assert "does not answer" in line
    assert "retrying for 120 s" in line
    with pytest.raises(HeadLostError, match="does not answer") as error:
        client.follow(JOB, print)
    assert clock.passed_s >= 120
    assert "\n" not in str(error.value)


def test_ctrl_c_leaves_the_job_and_names_the_commands_to_see_and_stop_it():
    command = [sys.executable, "-m", "jobs.cli.entry", "jobs", "logs", "-f", JOB, "--address"]
    with (
        fake_head(status="RUNNING", exit_code=None) as head,
        subprocess.Popen(
            [*command, head.url], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
        ) as process,
    ):
        assert [process.stdout.readline() for _ in range(3)] == head.log.splitlines(True)
        process.send_signal(signal.SIGINT)
        _, err = process.communicate(timeout=120)
    assert process.returncode == 130, err
    (line,) = err.splitlines()
    for what in ("logs -f", "stop"):
        assert f"`tango jobs {what} {JOB} --address {head.url}`" in line


def test_a_job_that_the_cluster_does_not_know():
    with fake_head() as head:
        client = Head(head.url)
        assert client.find("0123") == JOB
        with pytest.raises(HeadError, match=f"other is not a job on .*; jobs: {JOB}"):
            client.find("other")
        with pytest.raises(HeadError, match="refuses"):
            client.follow("other", print)


@pytest.mark.parametrize(
    ("status", "code", "expected"),
    [
        *(("FAILED", 1, 1), ("FAILED", -9, 137), ("FAILED", None, 2)),
        *(("STOPPED", None, 143), ("SUCCEEDED", None, 0)),
    ],
)
def test_exit_codes(status, code, expected):
    job = SimpleNamespace(status=SimpleNamespace(value=status), driver_exit_code=code)
    assert exit_code(job) == expected


ROOT = Path(__file__).parents[3]


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
    first = request_for(user="anna", recipe={"executor": "ray"})
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
