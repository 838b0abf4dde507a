"""`tango submit` and `tango jobs`: mistakes end in one line before anything is sent."""

from __future__ import annotations

import getpass
import os
import socket
import sys
import threading
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from unittest.mock import Mock

import pytest
import yaml
from fake_head import JOB, fake_head
from typer.main import get_command

from jobs.cli import main
from jobs.cli.submit import split_options
from jobs.submit.request import read_runtime_env

RECIPE = {
    "benchmark": {"name": "shapes"},
    "model": {"name": "tiny"},
    "method": {"name": "tango", "retention": 0.1},
}
# Nothing listens there: whoever asks it has sent something.
NOWHERE = ["--address", "http://127.0.0.1:9"]


@pytest.fixture
def recipe(tmp_path):
    path = tmp_path / "recipe.yaml"
    path.write_text(yaml.safe_dump(RECIPE))
    return path


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--", "--otput", "x"], "no such option: --otput"),
        (["--", "--limit", "none"], "got 'none'; see `tango sweep --help`"),
        (["--", "--address", "auto"], "--address is not allowed after --"),
        (["--", "--set", "method.retention=2"], "retention must be in (0, 1], got 2"),
        (["--", "--set", "method.name=tanga"], "unknown method 'tanga'; did you mean 'tango'?"),
        (["--", "--set", "model.name=tyny"], "unknown model"),
        (["--", "--set", "benchmark.name=nope"], "unknown benchmark"),
        (["--", "--set", "pols=1"], "unknown key 'pols'; did you mean 'pools'?"),
        (["--", "--tracking-uri=http://a:b@c"], "--tracking-uri contains a password or a token"),
        (["--command", "precompute", "--", "--mode", "profile"], "no such option: --mode"),
        (["--command", "analyze"], "'analyze'"),
        (["--env", "=x"], "--env =x has no name"),
        (["--entrypoint-resource", "=1"], "--entrypoint-resource =1 is not of the form"),
        (["--env", "NOT_SET_HERE"], "--env NOT_SET_HERE is not set here"),
        (["--env-visible", "NOT_SET_HERE"], "--env-visible NOT_SET_HERE is not set here"),
        (["--runtime-env", "nowhere.yaml"], "--runtime-env nowhere.yaml cannot be read"),
        (["--entrypoint-resource", "disk"], "--entrypoint-resource disk is not of the form"),
        (["--working-dir", __file__], "test_submit.py: a file, not a directory"),
        (["--entrypoint-memory", "much"], "--entrypoint-memory 'much' is not a size"),
        (["--", "--limit", "2"], "no Ray cluster at --address http://127.0.0.1:9"),
    ],
)
def test_a_mistake_is_one_line(tango, recipe, arguments, message):
    code, out, err = tango("submit", recipe, *NOWHERE, *arguments)
    assert (code, out) == (2, "")
    assert message in err
    assert len(err.strip().splitlines()) == 1, err


def test_a_host_without_a_port_is_told_what_is_asked(tango, recipe):
    for arguments in (("submit", recipe), ("jobs", "list")):
        # Not the address that a dashboard of this machine listens at.
        code, out, err = tango(*arguments, "--address", "http://127.8.2.65")
        assert (code, out) == (2, "")
        asked, failed = err.splitlines()
        assert asked.startswith("no port given: using http://127.8.2.65:8265, ")
        assert "no Ray cluster at --address http://127.8.2.65:8265: " in failed


@pytest.mark.parametrize("port", ["99999", "head", "-1"])
def test_a_port_that_is_none_names_the_option(tango, recipe, port):
    for arguments in (("submit", recipe), ("jobs", "list"), ("evaluate", recipe)):
        code, out, err = tango(*arguments, "--address", f"127.0.0.1:{port}")
        assert (code, out) == (2, "")
        assert f"--address 127.0.0.1:{port} " in err
        assert "tango: " in err.splitlines()[-1]


def test_another_server_is_no_dashboard(tango, recipe, tmp_path):
    class Quiet(SimpleHTTPRequestHandler):
        def log_message(self, *_):
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Quiet) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        url = f"http://127.0.0.1:{server.server_port}"
        said = [tango(*one, "--address", url) for one in (("submit", recipe), ("jobs", "list"))]
        server.shutdown()
    for code, out, err in said:
        assert (code, out) == (2, "")
        assert err.startswith(f"tango: {url} answers, but is not a Ray dashboard; give the head's")
        assert len(err.splitlines()) == 1


def test_a_port_without_http_is_told_the_usual_one(tango):
    with socket.create_server(("127.0.0.1", 0)) as server:

        def hang_up():
            while True:
                try:
                    server.accept()[0].close()
                except OSError:
                    return

        threading.Thread(target=hang_up, daemon=True).start()
        url = f"http://127.0.0.1:{server.getsockname()[1]}"
        code, out, err = tango("jobs", "list", "--address", url)
        server.shutdown(socket.SHUT_RDWR)
    assert (code, out) == (2, "")
    assert f"{url} does not answer" in err
    assert "by default http://head:8265" in err
    assert len(err.splitlines()) == 1


@pytest.mark.parametrize(
    "variable",
    [
        "HF_TOKEN",
        "DB_PASSWORD=short",
        "MODEL=https://me:topsecret9@hub/model",
        "COPY=mine topsecret9",
    ],
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
    # Whoever asks for it gets it.
    code, _, err = tango("submit", recipe, *NOWHERE, "--env-visible", variable)
    assert "no Ray cluster at" in err
    found = {"env_vars": {name: value or "topsecret9"}}
    assert read_runtime_env(None, [], [variable]) == found
    assert read_runtime_env(file, [], [name + "=" + value if value else name]) == found


def test_the_place_of_a_secret_is_none():
    harmless = ["HF_TOKEN_PATH=/shared/hf", "MAX_TOKENS=512", "TOKENIZERS_PARALLELISM=false"]
    found = read_runtime_env(None, harmless)["env_vars"]
    assert [f"{name}={value}" for name, value in found.items()] == harmless


def test_a_password_in_the_address_is_not_shown(tango, recipe):
    code, _, err = tango("submit", recipe, "--address", "http://me:topsecret9@127.0.0.1:9")
    assert code == 2
    assert "no Ray cluster at --address http://***@127.0.0.1:9" in err
    assert "topsecret9" not in err
    with fake_head() as head:
        address = head.url.replace("http://", "http://me:topsecret9@")
        code, out, err = tango("jobs", "logs", "-f", JOB, "--address", address)
    assert "topsecret9" not in out + err


@pytest.mark.parametrize("command", ["evaluate", "sweep", "precompute"])
def test_options_for_the_cluster_are_handed_on_as_written(command, recipe):
    given = ["--cache", "s3://bucket/cache", "--output", "~/runs", "--limit", "3", "--quiet"]
    app = get_command(main.app)
    context = app.commands["submit"].make_context(
        "submit", [str(recipe)], parent=app.make_context("tango", ["submit"])
    )
    changes, rest = split_options(context, command, recipe, given)
    assert changes == ["limit=3"]
    assert rest == ["--output", "~/runs", "--cache", "s3://bucket/cache", "--quiet"]


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("env_vars: {OMP_NUM_THREADS: 1, A: true, B: b}", {"OMP_NUM_THREADS": "1", "A": "true"}),
        ("env_vars: ['A=1']", None),
        ("env_vars: {A: [1]}", None),
    ],
)
def test_variables_are_text(tmp_path, text, found):
    path = tmp_path / "env.yaml"
    path.write_text(text)
    if found is None:
        with pytest.raises(ValueError, match="env_vars must be a mapping of names to values"):
            read_runtime_env(path, [])
    else:
        assert read_runtime_env(path, ["B=c"]) == {"env_vars": {**found, "B": "c"}}


def test_a_user_without_a_name_is_no_mistake(tango, recipe, monkeypatch):
    monkeypatch.setattr(getpass, "getuser", Mock(side_effect=KeyError("getpwuid()")))
    code, _, err = tango("submit", recipe, *NOWHERE)
    assert code == 2
    assert "no Ray cluster" in err


def test_several_frame_counts_are_no_single_evaluation(tango, recipe):
    arguments = ["--command", "evaluate", "--", "--set", "model.num_frames=[4,8]"]
    code, _, err = tango("submit", recipe, *NOWHERE, *arguments)
    assert code == 2
    assert "submit it with --command sweep" in err


def test_several_methods_are_no_single_evaluation(tango, recipe):
    arguments = ["--command", "evaluate", "--", "--set", "method.retention=[0.1,0.2]"]
    code, _, err = tango("submit", recipe, *NOWHERE, *arguments)
    assert code == 2
    assert "this recipe names 2 methods; run it with `tango sweep`" in err


def test_paths_are_those_of_the_cluster(tango, recipe):
    """A benchmark that is not on this machine is no mistake: only the cluster is missing here."""
    arguments = ["--set", "benchmark.name=videomme", "--set", "benchmark.root=/not/here"]
    code, _, err = tango("submit", recipe, *NOWHERE, "--", *arguments)
    assert code == 2
    assert "no Ray cluster" in err


def test_without_an_address_there_is_nowhere_to_send_it(tango, recipe, monkeypatch):
    monkeypatch.delenv("RAY_ADDRESS", raising=False)
    code, _, err = tango("submit", recipe)
    assert code == 2
    assert "--address is missing" in err


def test_jobs_are_listed_shown_and_end_with_their_code(tango):
    with fake_head(status="FAILED", exit_code=7) as head:
        where = ["--address", head.url]
        code, out, _ = tango("jobs", "list", *where)
        assert (code, out.split()[8:12]) == (0, [JOB, "FAILED", "7", "sweep"])
        code, out, _ = tango("jobs", "status", JOB[:9], *where)
        assert code == 0
        assert "exit code:  7" in out
        (plain,) = yaml.safe_load(tango("jobs", "status", JOB, "--json", *where)[1])
        assert (plain["id"], plain["exit_code"]) == (JOB, 7)
        assert tango("jobs", "logs", JOB, *where)[:2] == (0, head.log)
        code, out, err = tango("jobs", "logs", "-f", JOB, *where)
        assert (code, out) == (7, head.log)
        assert f"{JOB}: FAILED, exit code 7" in err
        code, _, err = tango("jobs", "status", "other", *where)
        assert code == 2
        assert "other is not a job" in err


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


def test_an_interpreter_that_is_not_there_is_explained(tango):
    with fake_head(status="FAILED", exit_code=127) as head:
        code, _, err = tango("jobs", "logs", "-f", JOB, "--address", head.url)
    assert code == 127
    assert "set it with --python" in err
