"""What a process says while the lines of Ray's core are kept from its terminal."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[3]

SAYS_AND_LEAVES = """
import sys
from pipeline.executors.quiet import without_native_lines
from pipeline.stopping import leave

with without_native_lines():
    for number in range(300):
        print(number, file=sys.stderr)
    print("[2026-01-31 12:00:00,000 I 42 42] core.cc:1: native", file=sys.stderr)
    leave(3)
"""


def test_a_process_that_leaves_has_said_everything_of_its_own():
    done = subprocess.run(
        [sys.executable, "-c", SAYS_AND_LEAVES],
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert done.returncode == 3
    assert done.stderr.splitlines() == [str(number) for number in range(300)]
