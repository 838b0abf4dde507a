"""Known faults that are brought back one by one are found."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tests.chaos.mutations.faults import MUTATIONS


def test_what_a_mutation_replaces_exists():
    for mutation in MUTATIONS:
        with mutation.applied():
            pass


@pytest.mark.slow
@pytest.mark.timeout(1800)
def test_every_known_fault_is_found():
    command = [sys.executable, "-m", "tests.chaos.mutations.hunt"]
    root = Path(__file__).parents[2]
    done = subprocess.run(command, cwd=root, capture_output=True, text=True, timeout=1700)
    assert done.returncode == 0, done.stdout + done.stderr[-2000:]
    assert len(MUTATIONS) >= 28
