import os
import subprocess
import sys
import threading
import time
from pathlib import Path

import faults
import pytest
from clips import clip

from pipeline.errors import WorkerError
from pipeline.runtime.child import Child, ChildStartError, CrashError
from pipeline.runtime.process import is_running

ROOT = Path(__file__).parents[3]
linux = pytest.mark.skipif(sys.platform != "linux", reason="a Linux kernel feature")


@pytest.fixture(scope="module")
def shared_child():
    child = Child(memory_gib=2)
    yield child
    child.close()


@pytest.fixture
def run(shared_child):
    def run(function, *args, timeout_s=60.0):
        return shared_child.call(
            function, *args, timeout_s=timeout_s, about="clip.mp4", what="decoder"
        )

    return run


def ends(pid):
    """Whether the process ends; a loaded machine may take its time."""
    deadline = time.monotonic() + 60
    while is_running(pid) and time.monotonic() < deadline:
        time.sleep(0.02)
    return not is_running(pid)


def test_the_child_has_neither_torch_nor_ray_after_decoding(run):
    loaded = run(faults.decode_then_list_modules, str(clip("closed_gop.mp4")))
    assert {"torch", "ray", "transformers", "pandas", "pyarrow", "pytest"}.isdisjoint(loaded)
    assert {"av", "numpy"} <= set(loaded)


@pytest.mark.parametrize("fault", [faults.hang, faults.hang_holding_the_gil])
def test_a_hang_is_a_timeout_and_the_next_call_works(run, fault):
    before = run(faults.pid)
    with pytest.raises(TimeoutError, match=r"clip.mp4: no result from the decoder within 0.5 s"):
        run(fault, timeout_s=0.5)
    assert not is_running(before)
    assert run(faults.pid) != before


def test_a_segmentation_fault_is_an_error_that_names_signal_and_file(run):
    message = r"clip.mp4: the decoder crashed with signal 11 \(SIGSEGV\)"
    with pytest.raises(CrashError, match=message):
        run(faults.crash)
    assert run(faults.echo, 1) == 1


@linux
def test_too_much_memory_is_a_memory_error_and_the_next_call_works(run):
    with pytest.raises(MemoryError, match=r"clip.mp4: the decoder needed more than 2 GiB"):
        run(faults.allocate, 3.0)
    assert run(faults.allocate, 0.5) == 2**29


def test_an_exception_keeps_its_type_and_message_and_the_process(run):
    before = run(faults.pid)
    with pytest.raises(ValueError, match="not a video"):
        run(faults.fail, "not a video")
    assert run(faults.pid) == before


def test_a_child_started_by_a_thread_survives_that_thread():
    """The kernel's parent-death signal fires when the starting thread ends, not the process."""
    child = Child()
    try:
        pids = []
        call = lambda: pids.append(child.call(faults.pid, timeout_s=60, about="x"))  # noqa: E731
        thread = threading.Thread(target=call)
        thread.start()
        thread.join(60)
        time.sleep(0.1)
        assert child.call(faults.pid, timeout_s=60, about="x") == pids[0]
    finally:
        child.close()


def test_an_interpreter_that_cannot_start_is_not_blamed_on_an_item(monkeypatch):
    monkeypatch.setattr(sys, "executable", "/nonexistent/python")
    with pytest.raises(ChildStartError, match="/nonexistent/python"):
        Child().call(faults.pid, timeout_s=60, about="x")


@pytest.mark.parametrize(("kills", "starts"), [(2, True), (3, False)])
def test_a_child_that_is_killed_while_it_starts_is_started_again(
    tmp_path, monkeypatch, kills, starts
):
    # As by the kernel when memory is short: it ended the job with a traceback.
    python = tmp_path / "python"
    python.write_text(
        f"#!/bin/sh\necho x >> {tmp_path}/starts\n"
        f"[ $(wc -l < {tmp_path}/starts) -gt {kills} ] || kill -9 $$\n"
        f'exec {sys.executable} "$@"\n'
    )
    python.chmod(0o755)
    monkeypatch.setattr(sys, "executable", str(python))
    child = Child()
    if starts:
        assert child.call(faults.pid, timeout_s=60, about="x") == child.pid
        child.close()
        return
    with pytest.raises(ChildStartError, match="was killed while it started, 3 times in a row"):
        child.call(faults.pid, timeout_s=60, about="x")
    assert isinstance(ChildStartError("x"), WorkerError), "the command says it in one line"


PARENT = """
import os, sys, threading, time
import faults
from pipeline.runtime.child import Child

child = Child()
print(child.call(faults.pid, timeout_s=60, about="x"), flush=True)
if sys.argv[1] == "busy":
    threading.Thread(
        target=lambda: child.call(faults.say_and_hang, sys.argv[2], timeout_s=600, about="x"),
        daemon=True,
    ).start()
    while not os.path.exists(sys.argv[2]):
        time.sleep(0.02)
    print("busy", flush=True)
sys.stdin.readline()
"""


@pytest.mark.parametrize("state", ["idle", pytest.param("busy", marks=linux)])
def test_a_killed_parent_takes_its_child_with_it(state, tmp_path):
    command = [sys.executable, "-c", PARENT, state, str(tmp_path / "busy")]
    paths = {"PYTHONPATH": os.pathsep.join([str(ROOT), str(ROOT / "tests" / "fixtures")])}
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
    with subprocess.Popen(command, env={**os.environ, **paths}, text=True, **pipes) as parent:
        pid = int(parent.stdout.readline())
        if state == "busy":
            assert parent.stdout.readline() == "busy\n"
        assert is_running(pid)
        parent.kill()
    assert ends(pid)


def test_modules_are_found_where_the_parent_finds_them(tmp_path, monkeypatch, shared_child):
    """Ray puts a job's working directory on `sys.path` without telling the environment."""
    (tmp_path / "only_here.py").write_text("def answer():\n    return 42\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    import only_here

    child = Child()
    try:
        assert child.call(only_here.answer, timeout_s=60, about="x") == 42
    finally:
        child.close()
