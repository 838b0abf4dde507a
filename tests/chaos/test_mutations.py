"""The simulator finds known faults that are brought back one by one."""

from __future__ import annotations

import json
import subprocess
import sys
from contextlib import ExitStack
from pathlib import Path

import pytest

from tests.chaos.mutations import Mutation
from tests.chaos.mutations.hunt import MUTATIONS

MOST_SCHEDULES = 50
AT_LEAST = 18


@pytest.mark.parametrize("mutation", MUTATIONS, ids=lambda one: one.name)
def test_what_a_mutation_replaces_is_still_there(mutation: Mutation):
    with ExitStack() as stack:  # `patch` raises for a name that the product does not have
        for one in mutation.applied():
            stack.enter_context(one)


@pytest.mark.slow
@pytest.mark.timeout(1200)
def test_at_least_eighteen_known_faults_are_found():
    command = [
        sys.executable, "-m", "tests.chaos.mutations.hunt",
        "--most", str(MOST_SCHEDULES), "--until", str(AT_LEAST), "--json",
    ]  # fmt: skip
    done = subprocess.run(
        command, cwd=Path(__file__).parents[2], capture_output=True, text=True, timeout=1100
    )
    assert done.returncode == 0, done.stderr[-2000:]
    caught = json.loads(done.stdout.strip().splitlines()[-1])
    assert len(caught) >= AT_LEAST, caught
