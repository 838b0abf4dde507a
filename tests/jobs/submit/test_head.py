"""The client of a cluster's head: where the dashboard is, what it shows, and when it is away."""

from __future__ import annotations

import logging
import signal
import subprocess
import sys
from types import SimpleNamespace

import pytest
from fake_clock import FakeClock
from fake_head import JOB, fake_head

from jobs.submit.head import Head, HeadError, HeadLostError, dashboard_url, exit_code
from pipeline.errors import ClusterError


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
