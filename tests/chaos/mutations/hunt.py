"""Look for each mutation in some schedules: `python -m tests.chaos.mutations.hunt`."""

from __future__ import annotations

import argparse
import json
import os
import sys
import time
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor, as_completed
from contextlib import ExitStack
from dataclasses import dataclass
from multiprocessing import get_context

from tests.chaos.mutations.drivers import DRIVERS
from tests.chaos.mutations.files import FILES
from tests.chaos.simulator.schedules import schedule_of
from tests.chaos.simulator.simulate import _reference, simulate

MUTATIONS = sorted((*DRIVERS, *FILES), key=lambda one: one.rare)
MOST_SCHEDULES = 60


@dataclass(frozen=True)
class Catch:
    """How a mutation was caught.

    Attributes:
        name: Of the mutation.
        after: Schedules that were run, the one that caught it included; 0 if none did.
        problem: What the simulator said.
        seconds: Of processor time.
    """

    name: str
    after: int
    problem: str
    seconds: float


def hunt(index: int, most: int = MOST_SCHEDULES) -> Catch:
    """Run schedules until one shows the mutation, and shows nothing without it."""
    mutation = MUTATIONS[index]
    for clips in range(2, 6):
        _reference(clips)  # of the product as it is
    begun = time.process_time()
    for seed in range(most):
        schedule = schedule_of(seed, mutation.kinds, mutation.worlds)
        with ExitStack() as stack:
            for one in mutation.applied():
                stack.enter_context(one)
            problem = simulate(schedule).problem
        if problem and not simulate(schedule).problem:  # it is the mutation's
            return Catch(mutation.name, seed + 1, problem, time.process_time() - begun)
    return Catch(mutation.name, 0, "", time.process_time() - begun)


def hunts(most: int, processes: int, named: str = "") -> Iterator[Catch]:
    """The mutations whose names hold a text, each as soon as it is caught or given up."""
    with ProcessPoolExecutor(processes, mp_context=get_context("fork")) as workers:
        wanted = [index for index, one in enumerate(MUTATIONS) if named in one.name]
        pieces = [workers.submit(hunt, index, most) for index in wanted]
        try:
            for piece in as_completed(pieces):
                yield piece.result()
        finally:
            workers.shutdown(cancel_futures=True)


def line_of(catch: Catch) -> str:
    """A row of the table."""
    said = catch.problem.strip().splitlines()[0][:100].replace("|", "/") if catch.problem else ""
    return f"| {catch.name} | {catch.after or 'missed'} | {said} | {catch.seconds:.0f} |"


def main() -> int:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--most", type=int, default=MOST_SCHEDULES)
    parser.add_argument("--until", type=int, default=len(MUTATIONS), help="stop at so many")
    parser.add_argument("--named", default="", help="only those whose names hold this text")
    parser.add_argument("--processes", type=int, default=os.cpu_count() or 1)
    parser.add_argument("--json", action="store_true", help="print the names alone")
    options = parser.parse_args()
    caught: list[str] = []
    if not options.json:
        print("| fault | caught after | what the simulator says | s |\n|---|---|---|---|")
    for catch in hunts(options.most, options.processes, options.named):
        if not options.json:
            print(line_of(catch), flush=True)
        caught += [catch.name] if catch.after else []
        if len(caught) == options.until:
            break
    print(json.dumps(caught) if options.json else f"\n{len(caught)} of {len(MUTATIONS)} caught")
    return 0


if __name__ == "__main__":
    code = main()
    sys.stdout.flush()
    os._exit(code)
