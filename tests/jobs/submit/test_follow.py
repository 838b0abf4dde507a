"""A log is shown once and whole, whatever the network does; the exit code is the job's."""

from __future__ import annotations

import logging
import signal
import subprocess
import sys
from types import SimpleNamespace

import pytest
from fake_clock import FakeClock
from fake_head import JOB, endless, fake_head, half, whole

from jobs.submit.follow import LostError, exit_code, follow
from jobs.submit.head import Head, HeadError


def shown(head, **options):
    """What `follow` writes, and the job at its end."""
    texts = []
    details = follow(Head(head.url), JOB, texts.append, clock=FakeClock(), **options)
    return "".join(texts), details


def test_a_log_comes_once_and_whole():
    with fake_head(tails=[whole], exit_code=7, status="FAILED") as head:
        text, details = shown(head)
    assert text == head.log
    assert exit_code(details) == 7


def test_a_connection_that_breaks_is_made_again_and_nothing_is_shown_twice():
    with fake_head(tails=[half, half, whole], status="RUNNING", exit_code=None) as head:

        async def end(request, socket, log):
            head.status, head.exit_code = "SUCCEEDED", 0
            await whole(request, socket, log)

        head.tails[-1] = end
        text, details = shown(head)
        assert sum(path.endswith("/tail") for path in head.asked) == 3
    assert text == head.log
    assert exit_code(details) == 0


def test_a_proxy_without_lasting_connections_is_no_obstacle():
    with fake_head(tails=[]) as head:
        text, _ = shown(head)
    assert text == head.log


def test_a_head_that_is_away_for_a_moment_is_asked_again(caplog):
    with fake_head(tails=[whole]) as head:
        client = Head(head.url)
        head.broken = 5
        texts = []
        with caplog.at_level(logging.WARNING):
            follow(client, JOB, texts.append, clock=FakeClock())
    assert "".join(texts) == head.log
    (line,) = caplog.messages
    assert "does not answer" in line
    assert "asking again for 120 s" in line


def test_ctrl_c_leaves_the_job_and_says_how_to_see_it_again():
    command = [sys.executable, "-m", "jobs.cli.entry", "jobs", "logs", "-f", JOB, "--address"]
    with (
        fake_head(tails=[endless], status="RUNNING", exit_code=None) as head,
        subprocess.Popen(
            [*command, head.url], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
        ) as process,
    ):
        assert [process.stdout.readline() for _ in range(3)] == head.log.splitlines(True)
        process.send_signal(signal.SIGINT)
        _, err = process.communicate(timeout=120)
    assert process.returncode == 130, err
    (line,) = err.splitlines()
    assert f"`tango jobs logs -f {JOB} --address {head.url}`" in line
    assert f"`tango jobs stop {JOB} --address {head.url}`" in line


def test_a_head_that_stays_away_is_one_line():
    with fake_head(tails=[whole]) as head:
        client = Head(head.url)
    clock = FakeClock()
    with pytest.raises(LostError, match="does not answer") as error:
        follow(client, JOB, print, clock=clock)
    assert clock.passed_s >= 120
    assert "\n" not in str(error.value)


def test_a_job_that_the_cluster_does_not_know():
    with fake_head() as head:
        client = Head(head.url)
        assert client.find("0123") == JOB
        with pytest.raises(HeadError, match=f"other is not a job on .*; there: {JOB}"):
            client.find("other")
        with pytest.raises(HeadError, match="refuses"):
            follow(client, "other", print, clock=FakeClock())


@pytest.mark.parametrize(
    ("status", "code", "expected"),
    [
        ("SUCCEEDED", 0, 0),
        ("FAILED", 1, 1),
        ("FAILED", 2, 2),
        ("FAILED", -9, 137),
        ("STOPPED", None, 143),
        ("FAILED", None, 2),
        ("SUCCEEDED", None, 0),
    ],
)
def test_exit_codes(status, code, expected):
    job = SimpleNamespace(status=SimpleNamespace(value=status), driver_exit_code=code)
    assert exit_code(job) == expected
