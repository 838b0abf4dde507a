"""What the driver does before a half-finished sweep goes on, measured in a process of its own.

    python tests/perf/resuming.py FOLDER --clips N

`FOLDER` is empty. The manifest of `planning.py` is written there, and a run of 21 cells that has
answered the first half of its clips (1 in 1000 of them failed). Then the driver's own code runs
from the recipe up to the point where the other clips would be handed out.

Prints one line of JSON: seconds of the steps, and the process's peak memory in GiB after each.
"""

from __future__ import annotations

import argparse
import io
import json
import os
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from planning import peak_gib, recipe, write_manifest
from rich.console import Console
from synthetic_answers import write_answers

from jobs.config.recipe import Job
from jobs.run.build import build, items_of
from jobs.run.driver import execute
from jobs.run.locations import Locations
from pipeline.plan import Plan
from pipeline.rows import Result
from pipeline.settings import Settings


class Planned(Exception):  # noqa: N818
    """Ends the job where its clips would be handed out."""


def main() -> None:
    """Write the half-finished run in a child, resume it, and print."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("folder", type=Path)
    parser.add_argument("--clips", type=int, default=10_000)
    options = parser.parse_args()
    options.folder.mkdir(parents=True, exist_ok=True)
    job = recipe(write_manifest(options.folder, options.clips), cells=21)
    if (child := os.fork()) == 0:
        answer_half(job, options.folder / "run", options.clips // 2)
        os._exit(0)
    if os.waitpid(child, 0)[1]:
        raise RuntimeError("the answers could not be written")
    print(json.dumps({"clips": options.clips, **measure(job, options.folder)}))


def answer_half(job: Job, run_dir: Path, number: int) -> None:
    """Write the answers about the first clips, and the recipe."""
    built = build(job)
    names, ids = [], []
    for _, item in items_of(job, built):
        names.append(item.video_id)
        ids.append([question.id for question in item.questions])
        if len(names) == number:
            break
    write_answers(run_dir, names, [name for name, _ in built.methods], ids)
    (run_dir / "job.yaml").write_text(job.to_yaml())


def measure(job: Job, folder: Path) -> dict[str, Any]:
    """Run the driver until it would hand out clips."""
    found: dict[str, Any] = {"load": round(os.getloadavg()[0], 1), "start_gib": peak_gib()}
    started, busy = time.perf_counter(), time.process_time()

    def stop_here(plan: Plan, settings: Settings) -> Iterator[Result]:
        """In the place of `pipeline.run`: everything before it is done."""
        found["planned_s"] = round(time.perf_counter() - started, 1)
        found["planned_cpu_s"] = round(time.process_time() - busy, 1)
        found["planned_gib"] = peak_gib()
        found["left"] = plan.clips.num_rows
        raise Planned

    locations = Locations(folder, cache=str(folder / "cache"))
    console = Console(file=io.StringIO())
    built = build(job)
    try:
        execute(job, built, "sweep", locations, folder / "run", console, run_plan=stop_here)
    except Planned:
        return found
    raise RuntimeError("nothing was left to do")


if __name__ == "__main__":
    main()
