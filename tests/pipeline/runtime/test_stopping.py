"""What a process does with SIGTERM, SIGINT and SIGHUP; each case is a process of its own."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from pipeline.runtime.process import is_running

ROOT = Path(__file__).parents[3]

BEGIN = """
import os, signal, sys, threading, time
from pipeline.runtime import stopping
from pipeline.runtime.stopping import Stopped, at_stop, deferred, handled, interruptible
from pipeline.runtime.stopping import raise_if_asked

# A busy machine may need longer than a user should wait; what is to hit a limit sets its own.
stopping.ENDS_WITHIN_S = stopping.HOOKS_WITHIN_S = 100

def send(name):
    os.kill(os.getpid(), getattr(signal, name))

def say(text):
    print(text, flush=True)
"""


def run(code, **options):
    """Exit code, standard output and standard error of `code` inside `handled`."""
    script = (
        f"{BEGIN}\nwith handled(lambda stopped: f'last words {{stopped.name}}'):\n"
        f"    exec(compile({code!r}, 'case', 'exec'))"
    )

    def default_signals():
        for signum in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            signal.signal(signum, options.get("disposition", signal.SIG_DFL))

    done = subprocess.run(
        [sys.executable, "-c", script],
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        timeout=120,
        preexec_fn=default_signals,
    )
    return done.returncode, done.stdout.split("\n")[:-1], done.stderr


@pytest.mark.parametrize(("name", "code"), [("SIGTERM", 143), ("SIGINT", 130), ("SIGHUP", 129)])
def test_a_signal_ends_the_process_in_one_line_with_its_code(name, code):
    found = run(f"""
try:
    send({name!r})
    say("not reached")
finally:
    say("cleaned up")
""")
    assert found == (code, ["cleaned up"], f"last words {name}\n")


def test_three_signals_are_one():
    found = run("""
try:
    for _ in range(3):
        try:
            send("SIGINT")
        finally:
            send("SIGINT")
            send("SIGTERM")
            say("written")
finally:
    send("SIGINT")
""")
    assert found == (130, ["written"], "last words SIGINT\n")


def test_a_deferred_block_ends_where_it_asks():
    found = run("""
with deferred():
    for step in range(3):
        if step == 1:
            send("SIGTERM")
        say(f"step {step} is whole")
        raise_if_asked()
""")
    assert found == (143, ["step 0 is whole", "step 1 is whole"], "last words SIGTERM\n")


def test_a_wait_in_a_deferred_block_can_be_cut_off():
    found = run("""
with deferred():
    with interruptible():
        send("SIGTERM")
        time.sleep(100)
""")
    assert found == (143, [], "last words SIGTERM\n")


def test_what_was_registered_runs_after_the_cleaning_up_and_newest_first():
    found = run("""
def fail(name):
    raise ValueError("a broken hook")

with at_stop(lambda name: say(f"outer {name}")), at_stop(fail):
    with at_stop(lambda name: say("not called")):
        pass
    with at_stop(lambda name: say("inner")):
        try:
            send("SIGTERM")
        finally:
            say("cleaned up")
""")
    code, out, err = found
    assert (code, out) == (143, ["cleaned up", "inner", "outer SIGTERM"])
    assert "a broken hook" in err
    assert "Traceback" not in err


def test_a_hook_that_hangs_is_left_behind():
    found = run("""
stopping.HOOKS_WITHIN_S = 0.2
with at_stop(lambda name: time.sleep(1000)):
    send("SIGTERM")
""")
    assert found == (143, [], "last words SIGTERM\n")


def test_native_code_that_does_not_come_back_is_left_behind():
    """No Python handler runs while the main thread is in there."""
    found = run("""
import hashlib
stopping.ENDS_WITHIN_S = 0.5
threading.Timer(0.2, send, ["SIGTERM"]).start()
hashlib.pbkdf2_hmac("sha256", b"", b"", 2**31 - 1)
""")
    assert found == (143, [], "last words SIGTERM\n")


def test_a_library_that_makes_another_error_of_it_changes_nothing():
    found = run("""
try:
    send("SIGTERM")
except BaseException as error:
    raise ImportError("half a module") from error
""")
    assert found == (143, [], "last words SIGTERM\n")


def test_children_and_their_children_end_with_it():
    _, (pid,), _ = run("""
import subprocess
inner = '''
import subprocess
process = subprocess.Popen(["sleep", "600"])
print(process.pid, flush=True)
process.wait()
'''
child = subprocess.Popen(
    [sys.executable, "-c", inner], stdout=subprocess.PIPE, text=True, start_new_session=True
)
say(child.stdout.readline().strip())
send("SIGTERM")
""")
    deadline = time.monotonic() + 120
    while is_running(int(pid)):  # the kernel ends it in its own time
        assert time.monotonic() < deadline
        time.sleep(0.05)


def test_what_is_ignored_from_the_start_stays_ignored():
    """As `nohup` does for SIGHUP."""
    found = run('send("SIGHUP"); say("goes on")', disposition=signal.SIG_IGN)
    assert found == (0, ["goes on"], "")
