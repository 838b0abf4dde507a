"""Real `tango` processes that get a signal in mid-run."""

from __future__ import annotations

import signal
import socket
import time

import pytest
from stopped_runs import (
    CLIPS_OF_A_TEST,
    NOTHING,
    complete,
    difference,
    num_cached,
    processes_of,
    run_of,
    tango,
    write_recipe,
)

from pipeline.storage.leases import RELEASED

pytestmark = [pytest.mark.slow, pytest.mark.ray, pytest.mark.timeout(900)]

SWEEP = ("sweep", "recipe.yaml", "--limit", CLIPS_OF_A_TEST)
LOOP = ("--set", "executor=local")


@pytest.fixture(scope="module")
def work(tmp_path_factory):
    folder = tmp_path_factory.mktemp("stops")
    write_recipe(folder, folder / "shapes")
    return folder


@pytest.fixture(scope="module")
def whole(work):
    """The run that nobody disturbs."""
    done = complete(*SWEEP, *LOOP, cwd=work, output=work / "whole")
    assert done.process.returncode == 0, done.text()
    return run_of(done.output)


@pytest.mark.parametrize(
    ("executor", "signum", "times", "to_group"),
    [("local", signal.SIGTERM, 1, False), ("ray", signal.SIGTERM, 1, True)],
)
def test_a_stopped_job_ends_in_one_line_and_loses_nothing(
    work, whole, tmp_path, executor, signum, times, to_group
):
    output = tmp_path / "runs"  # a second try finds no token sets of the first
    with tango(*SWEEP, "--set", f"executor={executor}", cwd=work, output=output) as first:
        first.wait_until(lambda: num_cached(output) >= 2)
        said = len(first.text().splitlines())
        code, _ = first.send(signum, times=times, to_group=to_group)
        text, last = first.text(), first.last_line()
    assert code == 128 + signum, text
    assert "Traceback" not in text
    after = text.splitlines()[said:]
    assert [line for line in after if "clips, encoded" not in line] == [last], text
    assert last.startswith(
        "tango: stopped by SIGTERM; finished clips are kept, continue with: tango"
    )
    assert last.endswith(f"--resume {run_of(output)}")
    deadline = time.monotonic() + 120
    while left := processes_of(first.process.pid):
        assert time.monotonic() < deadline, left
        time.sleep(0.1)
    left = [path.read_bytes() for path in run_of(output).glob(".lease*")]
    assert left == [RELEASED], "the lease is given back"
    resumed = complete(*SWEEP, "--resume", run_of(output), *LOOP, cwd=work, output=output)
    assert resumed.process.returncode == 0, resumed.text()
    assert difference(run_of(output), whole) == NOTHING


def test_a_cluster_that_accepts_and_stays_silent_is_one_line(work):
    with socket.create_server(("127.0.0.1", 0)) as silent:
        address = f"127.0.0.1:{silent.getsockname()[1]}"
        done = complete(
            *SWEEP, "--address", address, "--set", "cluster.start_timeout_s=1",
            cwd=work, output=work / "silent",
        )  # fmt: skip
    assert done.process.returncode == 2, done.text()
    assert f"{address} accepted no driver within cluster.start_timeout_s = 1 s" in done.last_line()
    assert "Traceback" not in done.text()
