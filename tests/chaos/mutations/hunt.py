"""Look for each mutation: `python -m tests.chaos.mutations.hunt`.

This module is also a plugin of pytest, `-p tests.chaos.mutations.hunt --mutation NAME`, which runs
tests with a mutation applied.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor, as_completed
from multiprocessing import get_context

import pytest

MOST_SCHEDULES = 100


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--mutation", required=True, help="name of an entry of MUTATIONS")


@pytest.hookimpl(wrapper=True)
def pytest_runtestloop(session: pytest.Session) -> Iterator[None]:
    from tests.chaos.mutations.faults import MUTATIONS

    with MUTATIONS[session.config.getoption("mutation")].applied():
        return (yield)


def hunt(name: str) -> tuple[str, int, str]:
    """Run a mutation's test, or schedules until one fails with the mutation and not without it.

    Returns:
        Name of the mutation; number of schedules that were run, or of failed tests, 0 if none found
        it; and what was found.
    """
    from tests.chaos.mutations.faults import MUTATIONS
    from tests.chaos.simulator.schedules import schedule_of
    from tests.chaos.simulator.simulate import _reference, simulate

    mutation = MUTATIONS[name]
    if mutation.test:
        failed = _failed_tests(name, mutation.test)
        return name, len(failed), " ".join(failed[:1])
    for clips in range(2, 6):
        _reference(clips)  # of the product without the mutation
    for seed in range(MOST_SCHEDULES):
        schedule = schedule_of(seed, mutation.kinds, mutation.worlds)
        with mutation.applied():
            problem = simulate(schedule).problem
        if problem and not simulate(schedule).problem:
            return name, seed + 1, problem.strip().partition("\n")[0]
    return name, 0, ""


def _failed_tests(name: str, test: str) -> list[str]:
    command = [sys.executable, "-m", "pytest", "-q", "-n0", "-m", "not slow and not system", test]
    plugin = ["-p", "tests.chaos.mutations.hunt", "--mutation", name]
    done = subprocess.run([*command, *plugin], capture_output=True, text=True, timeout=600)
    failed = [line for line in done.stdout.splitlines() if line.startswith("FAILED ")]
    if done.returncode != bool(failed):
        raise RuntimeError(f"pytest could not run {test}:\n{done.stdout}{done.stderr}")
    return failed


def main() -> int:
    """Print a table; the exit code is 1 if a mutation is not found."""
    from tests.chaos.mutations.faults import MUTATIONS

    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--named", default="", help="only those whose names hold this text")
    parser.add_argument("--processes", type=int, default=os.cpu_count() or 1)
    options = parser.parse_args()
    wanted = [name for name in MUTATIONS if options.named in name]
    missed = 0
    print("| fault | found after | by |\n|---|---|---|")
    with ProcessPoolExecutor(options.processes, mp_context=get_context("fork")) as workers:
        for piece in as_completed([workers.submit(hunt, name) for name in wanted]):
            name, after, problem = piece.result()
            missed += not after
            problem = problem[:100].replace("|", "/")
            print(f"| {name} | {after or 'missed'} | {problem} |", flush=True)
    print(f"\n{len(wanted) - missed} of {len(wanted)} found")
    return int(missed > 0)


if __name__ == "__main__":
    sys.exit(main())
