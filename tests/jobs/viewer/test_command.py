"""`tango view` from the command line."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import urllib.request

import pytest
from viewed_runs import write_viewed_run

from jobs.viewer.command import newest_run
from jobs.viewer.pages import deep_link


def test_links_quote_all_names():
    link = deep_link("run 1", ("my/bench", "a&b=c#d e"), ["tango r=0.1", "x<y"], base="v/")
    assert link == (
        "v/#/clip?benchmark=my%2Fbench&video=a%26b%3Dc%23d%20e&run=run%201"
        "&cell=tango%20r%3D0.1&cell=x%3Cy"
    )


def test_an_export_from_the_command_line(tango, tmp_path):
    run = write_viewed_run(tmp_path, clips=2)
    code, out, _ = tango("view", run, "--export", "site", "--pixels", 0)
    assert (code, out.split()) == (0, ["viewer:", "site/index.html"])


def test_the_newest_run_is_the_default(tmp_path):
    first = write_viewed_run(tmp_path, clips=1, name="b")
    second = write_viewed_run(tmp_path, clips=1, name="a")
    os.utime(first / "facts.json", (1, 1))
    assert newest_run(tmp_path).name == second.name


@pytest.mark.slow
def test_the_server_stops_on_sigint(tmp_path):
    run = write_viewed_run(tmp_path, clips=3)
    process = subprocess.Popen(
        [sys.executable, "-m", "jobs.cli.entry", "view", str(run)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, "PYTHONUNBUFFERED": "1"},
    )
    try:
        assert process.stdout is not None
        line = process.stdout.readline()
        assert line.startswith("6 questions about 3 clips: http://127.0.0.1:")
        url = line.split()[-1]
        with urllib.request.urlopen(f"{url}data/start/0", timeout=60) as answer:
            assert json.load(answer)["questions"] == 6
        process.send_signal(signal.SIGINT)
        _, err = process.communicate(timeout=60)
    finally:
        process.kill()
        process.wait()
    assert process.returncode == 130
    assert err.splitlines() == [
        "tango: interrupted; the viewer has stopped; the runs are unchanged"
    ]
