"""`make chaos SEED= N=`: many schedules on all processors; failing ones are printed."""

from __future__ import annotations

import argparse
import os
import sys
import time
from collections import Counter
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context

from tests.chaos.simulator.schedules import schedule_of
from tests.chaos.simulator.simulate import Outcome, simulate


def run_seed(seed: int) -> Outcome:
    """Run the schedule of a seed."""
    return simulate(schedule_of(seed))


def main() -> int:
    """Run schedules and print what they found."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--number", type=int, default=10_000)
    parser.add_argument("--processes", type=int, default=os.cpu_count() or 1)
    options = parser.parse_args()
    begun, kinds, steps, failed = time.monotonic(), Counter[str](), 0, 0
    seeds = range(options.seed, options.seed + options.number)
    # Children of this process share what it has imported.
    with ProcessPoolExecutor(options.processes, mp_context=get_context("fork")) as workers:
        outcomes = workers.map(run_seed, seeds, chunksize=20)
        for seed, outcome in zip(seeds, outcomes, strict=True):
            steps += outcome.steps
            kinds.update(fault.kind for fault in outcome.struck)
            if outcome.problem:
                failed += 1
                print(f"seed {seed}: {outcome.problem}\n{schedule_of(seed)}", flush=True)
    seconds = time.monotonic() - begun
    print(f"{options.number} schedules, {steps} steps, {seconds:.0f} s, {failed} failed")
    print(", ".join(f"{name} {count}" for name, count in kinds.most_common()))
    return int(failed > 0)


if __name__ == "__main__":
    sys.exit(main())
