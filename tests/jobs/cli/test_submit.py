"""`tango submit` and `tango jobs`: mistakes end in one line before anything is sent."""

from __future__ import annotations

import os
import sys
import threading
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer

import pytest
import yaml
from fake_head import JOB, fake_head

from jobs.submit.request import read_runtime_env

RECIPE = {
    "benchmark": {"name": "shapes"},
    "model": {"name": "tiny"},
    "method": {"name": "tango", "retention": 0.1},
}
# Nothing listens there: a command that sends something fails.
NOWHERE = ["--address", "http://127.0.0.1:9"]


@pytest.fixture
def recipe(tmp_path):
    path = tmp_path / "recipe.yaml"
    path.write_text(yaml.safe_dump(RECIPE))
    return path


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
