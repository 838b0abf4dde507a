"""`tango data get` and `tango model get` as processes: their ends, and what the next one does."""

from __future__ import annotations

import os
import random
import resource
import signal
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path

import pytest
from hub_releases import (
    cut,
    longvideobench_on_the_hub,
    tarred,
    videomme_on_the_hub,
    zipped,
)
from rich.console import Console

from jobs.fetch.data import data_get

pytestmark = pytest.mark.slow

ROOT = Path(__file__).parents[3]
PATIENCE_S = 120
VIDEOMME = "datasets/lmms-lab/Video-MME"
LONGVIDEOBENCH = "datasets/longvideobench/LongVideoBench"
LARGE = random.Random(0).randbytes(30_000_000)  # the client writes 10 MiB at once
TOKEN = "hf_goodgoodgoodgood"


@pytest.fixture
def run(server, tmp_path):
    """Start the command with that hub: `run(*arguments, **variables)`."""
    started = []

    def start(*arguments, preexec_fn=None, stdin=None, stdout=None, **variables):
        environment = {
            **os.environ,
            "PYTHONPATH": str(ROOT),
            "HF_ENDPOINT": server.url,
            "HF_HOME": str(tmp_path / "hub"),
            "HF_HUB_OFFLINE": "0",
            "HF_HUB_DOWNLOAD_TIMEOUT": "100",
            "HF_HUB_ETAG_TIMEOUT": "100",
            "NO_PROXY": "127.0.0.1",
            **variables,
        }
        command = [sys.executable, "-m", "jobs.cli.entry", *map(str, arguments)]
        process = subprocess.Popen(
            command,
            env=environment,
            cwd=tmp_path,
            stdin=stdin or subprocess.DEVNULL,
            stdout=stdout or subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            start_new_session=True,
            preexec_fn=preexec_fn,
        )
        started.append(process)
        return process

    yield start
    for process in started:
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)
        process.communicate()


def end_of(process):
    """Exit code, standard output, and the lines of standard error."""
    output, error = process.communicate(timeout=PATIENCE_S)
    return process.returncode, output, error.splitlines()


def wait_until(condition):
    """Poll until something is true."""
    deadline = time.monotonic() + PATIENCE_S
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.05)


def get(root, benchmark="videomme", *more):
    return "data", "get", benchmark, "--root", root, "--yes", *more


@pytest.fixture
def held(server, tmp_path):
    """Video-MME with a large zip, whose last 8 MB are not sent yet; its published name."""
    files = videomme_on_the_hub(tmp_path / "made")
    files["videos_chunked_02.zip"] = zipped({"data/aAaAaAaAaA0.mp4": LARGE})
    server.publish(VIDEOMME, files)
    server.held["videos_chunked_02.zip"] = 22_000_000
    return "videos_chunked_02.zip"


def bytes_here(root):
    """Bytes of the largest partial file; a complete one may be moved away meanwhile."""
    sizes = [0]
    for path in root.glob(".tango-get/parts/*.part"):
        with suppress(FileNotFoundError):
            sizes.append(path.stat().st_size)
    return max(sizes)


def go_on(root, benchmark="videomme"):
    """Give the command again, in this process: exit code and what is printed."""
    console = Console(record=True, width=200, force_terminal=False)
    return data_get(benchmark, root, console, yes=True), console.export_text()


def stopped(run, root, signum):
    """Send a signal in the middle of a large file: exit code and standard error."""
    process = run(*get(root))
    wait_until(lambda: bytes_here(root) > 20_000_000 or process.poll() is not None)
    os.kill(process.pid, signum)
    code, _, lines = end_of(process)
    return code, lines


def test_a_killed_download_goes_on_from_its_last_byte(server, run, held, tmp_path):
    root = tmp_path / "out"
    assert stopped(run, root, signal.SIGKILL)[0] == -signal.SIGKILL
    here = bytes_here(root)
    server.held.clear()
    server.release.set()
    server.requests.clear()
    code, output = go_on(root)
    assert code == 1  # what is in it is no video
    assert "aAaAaAaAaA0.mp4: not a video" in output
    assert server.gets(held) == [f"bytes={here}-"]
    assert (root / "data/aAaAaAaAaA0.mp4").read_bytes() == LARGE
    assert not list(root.glob("*.zip"))


@pytest.mark.parametrize(("signum", "code"), [(signal.SIGTERM, 143), (signal.SIGINT, 130)])
def test_a_signal_ends_it_with_the_command_that_goes_on(run, held, tmp_path, signum, code):
    root = tmp_path / "out"
    ended, lines = stopped(run, root, signum)
    assert ended == code
    command = f"tango data get videomme --root {root} --yes"
    said = [line for line in lines if line.startswith("tango: ")]
    assert said[-1].endswith(f"downloaded files are kept, continue with: {command}")
    assert bytes_here(root) > 20_000_000


def test_a_root_is_filled_by_one_process(run, held, tmp_path):
    root = tmp_path / "out"
    first = run(*get(root))
    wait_until(lambda: bytes_here(root) > 20_000_000 or first.poll() is not None)
    code, _, lines = end_of(run(*get(root)))
    assert (code, len(lines)) == (2, 1)
    assert lines[0].startswith(f"tango: another process downloads to {root}")
    assert first.poll() is None


def small_files():
    """Let a process write no file above 15 MB, as on a full disk."""
    resource.setrlimit(resource.RLIMIT_FSIZE, (15_000_000, 15_000_000))


def test_a_full_disk_ends_in_one_line_and_the_next_one_goes_on(server, run, held, tmp_path):
    root = tmp_path / "out"
    server.held.clear()

    code, _, lines = end_of(run(*get(root), preexec_fn=small_files))
    assert code == 2
    assert lines[-1].startswith(f"tango: no room for {held} (30.0 MB) in {root}: File too large")
    assert bytes_here(root) == 15_000_000
    server.requests.clear()
    assert go_on(root)[0] == 1
    assert server.gets(held) == ["bytes=15000000-"]


def test_no_room_to_unpack_ends_in_one_line(server, run, tmp_path):
    """The pieces of a tar are small, the video in it is not."""
    files = longvideobench_on_the_hub(tmp_path / "made")
    for name in [name for name in files if ".part." in name]:
        del files[name]
    server.publish(LONGVIDEOBENCH, {**files, **cut("videos.tar", tarred({"videos/a": LARGE}), 8)})

    root = tmp_path / "out"
    code, _, lines = end_of(run(*get(root, "longvideobench"), preexec_fn=small_files))
    assert code == 2
    assert lines[-1].startswith(f"tango: cannot unpack videos.tar to {root}: File too large")
    assert len(list(root.glob("videos.tar.part.*"))) == 8
    server.requests.clear()
    go_on(root, "longvideobench")
    assert (root / "videos/a").read_bytes() == LARGE
    assert not [each for each in server.requests if each.server == "store"]


def test_a_gated_benchmark(server, run, tmp_path):
    server.publish(LONGVIDEOBENCH, longvideobench_on_the_hub(tmp_path / "made"), gated=True)
    server.granted = {TOKEN}
    code, output, lines = end_of(run(*get(tmp_path / "out", "longvideobench")))
    assert (code, len(lines)) == (2, 1)
    assert f"it is gated: ask for access on {server.url}/{LONGVIDEOBENCH}" in lines[0]
    assert "access: for who accepts its terms on the hub" in output
    assert not (tmp_path / "out").exists()
    code, output, lines = end_of(run(*get(tmp_path / "out", "longvideobench"), HF_TOKEN=TOKEN))
    assert (code, output.rstrip().splitlines()[-1]) == (0, "complete")
    assert TOKEN not in output + "".join(lines)


def test_a_password_in_the_hubs_address_is_not_printed(server, run, tmp_path):
    server.publish(VIDEOMME, videomme_on_the_hub(tmp_path / "made"))
    address = server.url.replace("://", "://user:swordfish@")
    command = (*get(tmp_path / "out"), "--dry-run")
    code, output, lines = end_of(run(*command, HF_ENDPOINT=address))
    assert code == 0
    assert "user" not in output.replace("--", "")
    assert "swordfish" not in output + "".join(lines)
