"""What a process says while the lines of Ray's core are kept from its terminal."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[3]


def run(code):
    """A new process of this code, ended."""
    return subprocess.run(
        [sys.executable, "-c", code],
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        timeout=240,
    )


SAYS_AND_LEAVES = """
import sys
from pipeline.executors.quiet import without_native_lines
from pipeline.runtime.stopping import leave

with without_native_lines():
    for number in range(300):
        print(number, file=sys.stderr)
    print("[2026-01-31 12:00:00,000 I 42 42] core.cc:1: native", file=sys.stderr)
    leave(3)
"""


def test_a_process_that_leaves_has_said_everything_of_its_own():
    done = run(SAYS_AND_LEAVES)
    assert done.returncode == 3
    assert done.stderr.splitlines() == [str(number) for number in range(300)]


SAYS_WHILE_ITS_THREAD_GETS_NO_TIME = """
import os, sys, time
from pipeline.executors import quiet

def late(*given, pass_on=quiet._pass_on):
    time.sleep(0.5)
    pass_on(*given)

quiet._pass_on = late
quiet._PASSED_WITHIN_S = 100.0
with quiet.without_native_lines():
    print("ours", file=sys.stderr)
    os.write(2, b"[2026-01-31 12:00:00,000 I 42 42] core.cc:1: unfinished and native")
os._exit(0)
"""


def test_what_was_said_in_the_block_is_there_when_it_ends_however_busy_the_machine_is():
    done = run(SAYS_WHILE_ITS_THREAD_GETS_NO_TIME)
    assert (done.returncode, done.stderr) == (0, "ours\n")


UNREAD = """
import os, sys, threading
from pipeline.executors.quiet import without_native_lines

readable, writable = os.pipe()
os.close(readable)
os.dup2(writable, 2)
threading.excepthook = lambda failed: os._exit(9)
with without_native_lines():
    os.write(2, b"one\\n")
    os.write(2, b"two\\n")
os._exit(3)
"""


def test_a_terminal_that_is_gone_ends_no_thread():
    assert run(UNREAD).returncode == 3
