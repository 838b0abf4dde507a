"""`make chaos SEED= N=`: many schedules on all processors; failing ones are printed as tests."""

from __future__ import annotations

import argparse
import os
import resource
import sys
import time
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context

from tests.chaos.simulator.faults import Schedule
from tests.chaos.simulator.schedules import schedule_of
from tests.chaos.simulator.simulate import Outcome, simulate

BATCH = 20


def run_batch(first: int, count: int) -> list[tuple[int, str, Counter[str], int]]:
    """Some seeds: seed, problem, faults by kind, steps."""
    return [summary(seed, simulate(schedule_of(seed))) for seed in range(first, first + count)]


def summary(seed: int, outcome: Outcome) -> tuple[int, str, Counter[str], int]:
    """What is told of a schedule."""
    kinds = Counter(type(fault).__name__ for fault in outcome.struck)
    return seed, outcome.problem, kinds, outcome.steps


def batches(seed: int, number: int) -> Iterator[tuple[int, int]]:
    """The seeds, in pieces."""
    for first in range(seed, seed + number, BATCH):
        yield first, min(BATCH, seed + number - first)


def as_test(schedule: Schedule, seed: int, problem: str) -> str:
    """A test to paste into `tests/chaos/test_simulator.py`."""
    lines = schedule.printed().replace("\n", "\n    ")
    first = problem.strip().splitlines()[0][:90]
    return (
        f"def test_seed_{seed}():\n    # {first}\n    schedule = {lines}\n"
        "    assert not problem_of(schedule)\n"
    )


def main() -> int:
    """Run schedules and print what they found."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--number", type=int, default=10_000)
    parser.add_argument("--processes", type=int, default=os.cpu_count() or 1)
    parser.add_argument("--shown", type=int, default=3, help="failures that are printed")
    options = parser.parse_args()
    begun, kinds, steps, done = time.monotonic(), Counter[str](), 0, 0
    failures: list[tuple[int, str]] = []
    # Children of this process share what it has imported, and end without its libraries' threads.
    with ProcessPoolExecutor(options.processes, mp_context=get_context("fork")) as workers:
        pieces = [workers.submit(run_batch, *b) for b in batches(options.seed, options.number)]
        for piece in pieces:
            for seed, problem, struck, taken in piece.result():
                done, steps, kinds = done + 1, steps + taken, kinds + struck
                if problem:
                    failures.append((seed, problem))
                    print(f"seed {seed}: {problem.splitlines()[0][:200]}", flush=True)
    seconds, used = time.monotonic() - begun, resource.getrusage(resource.RUSAGE_CHILDREN)
    print(
        f"{done} schedules, {steps} steps, {seconds:.0f} s, "
        f"{used.ru_utime + used.ru_stime:.0f} s of processor time, {len(failures)} failed"
    )
    print(", ".join(f"{name} {count}" for name, count in kinds.most_common()))
    for seed, problem in failures[: options.shown]:
        print(f"\n{as_test(schedule_of(seed), seed, problem)}", flush=True)
    return 1 if failures else 0


if __name__ == "__main__":
    code = main()
    sys.stdout.flush()
    os._exit(code)  # libraries' threads could abort an orderly end of the interpreter
