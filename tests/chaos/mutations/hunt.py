"""Look for each mutation: `python -m tests.chaos.mutations.hunt`.

This module is also a plugin of pytest, `-p tests.chaos.mutations.hunt --mutation NAME`, which runs
tests with a mutation applied.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor, as_completed
from dataclasses import dataclass
from multiprocessing import get_context

import pytest

MOST_SCHEDULES = 60


@dataclass(frozen=True)
class Catch:
    """How a mutation was caught.

    Attributes:
        name: Of the mutation.
        after: Schedules that were run, the one that caught it included, or failed tests; 0 if it
            was not caught.
        problem: What the simulator found, or a test that failed.
        seconds: Processor time, of the simulator alone.
    """

    name: str
    after: int
    problem: str
    seconds: float


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--mutation", required=True, help="name of an entry of MUTATIONS")


@pytest.hookimpl(wrapper=True)
def pytest_runtestloop(session: pytest.Session) -> Iterator[None]:
    from tests.chaos.mutations.faults import MUTATIONS

    (mutation,) = (it for it in MUTATIONS if it.name == session.config.getoption("mutation"))
    with mutation.applied():
        return (yield)


def hunt(index: int, most: int = MOST_SCHEDULES) -> Catch:
    """Run the test, or schedules until one shows the mutation and shows nothing without it."""
    from tests.chaos.mutations.faults import MUTATIONS
    from tests.chaos.simulator.schedules import schedule_of
    from tests.chaos.simulator.simulate import _reference, simulate

    mutation = MUTATIONS[index]
    if mutation.test:
        return _tested(mutation.name, mutation.test)
    for clips in range(2, 6):
        _reference(clips)  # of the product as it is
    begun = time.process_time()
    for seed in range(most):
        schedule = schedule_of(seed, mutation.kinds, mutation.worlds)
        with mutation.applied():
            problem = simulate(schedule).problem
        if problem and not simulate(schedule).problem:  # it is the mutation's
            return Catch(mutation.name, seed + 1, problem, time.process_time() - begun)
    return Catch(mutation.name, 0, "", time.process_time() - begun)


def _tested(name: str, test: str) -> Catch:
    command = [sys.executable, "-m", "pytest", "-q", "-n0", "-m", "not slow and not system", test]
    plugin = ["-p", "tests.chaos.mutations.hunt", "--mutation", name]
    done = subprocess.run([*command, *plugin], capture_output=True, text=True, timeout=600)
    failed = [line for line in done.stdout.splitlines() if line.startswith("FAILED ")]
    if done.returncode not in (0, 1) or (done.returncode == 1 and not failed):
        raise RuntimeError(f"pytest could not run {test}:\n{done.stdout}{done.stderr}")
    return Catch(name, len(failed), failed[0] if failed else "", 0.0)


def hunts(most: int, processes: int, named: str = "") -> Iterator[Catch]:
    """The mutations whose names hold a text, each as soon as it is caught or given up."""
    from tests.chaos.mutations.faults import MUTATIONS

    with ProcessPoolExecutor(processes, mp_context=get_context("fork")) as workers:
        wanted = [index for index, one in enumerate(MUTATIONS) if named in one.name]
        for piece in as_completed([workers.submit(hunt, index, most) for index in wanted]):
            yield piece.result()


def row_of(catch: Catch) -> str:
    """A row of the table."""
    problem = catch.problem.strip().partition("\n")[0][:100].replace("|", "/")
    return f"| {catch.name} | {catch.after or 'missed'} | {problem} | {catch.seconds:.0f} |"


def main() -> int:
    """Print the table; the exit code is 1 if a mutation is not caught."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--most", type=int, default=MOST_SCHEDULES, help="schedules a mutation")
    parser.add_argument("--named", default="", help="only those whose names hold this text")
    parser.add_argument("--processes", type=int, default=os.cpu_count() or 1)
    options = parser.parse_args()
    print("| fault | caught after | by | s |\n|---|---|---|---|")
    caught = []
    for catch in hunts(options.most, options.processes, options.named):
        print(row_of(catch), flush=True)
        caught.append(catch.after > 0)
    print(f"\n{sum(caught)} of {len(caught)} caught")
    return int(not all(caught))


if __name__ == "__main__":
    code = main()
    sys.stdout.flush()
    os._exit(code)  # without waiting for threads of the simulator
