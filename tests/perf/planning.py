"""What the driver of a sweep does before the first clip starts, measured in a process of its own.

    python tests/perf/planning.py FOLDER --clips N [--cells 1|21] [--cached S] [--answered S]

`FOLDER` is empty. A table of questions with N clips is written there (1000 files, told apart by
their bounds, so that N may be large), caches that hold the first share of the clips (links to
one file: a listing sees no difference), and a run that has answered the first share of them (one
clip in 1000 failed). Then the driver's own code runs from the recipe to the point where clips would
be handed out, and on Ray hands out the first part of them.

Prints one line of JSON: wall seconds and processor seconds until the end of each step, and the
process's peak memory in GiB after each.
"""

from __future__ import annotations

import argparse
import io
import json
import os
import resource
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
from rich.console import Console

from jobs.config.recipe import Job, parse_job
from jobs.run.build import build, make_plan
from jobs.run.driver import execute
from jobs.run.locations import Locations
from jobs.run.run_dirs import claim, claim_caches, new_run_dir
from pipeline.plan import Plan
from pipeline.progress.answers import write_asked
from pipeline.rows import ANSWER, Result
from pipeline.settings import Settings
from pipeline.storage import Storage
from pipeline.storage.seal import write_sealed

NUM_FILES = 1000
_LINKS_PER_FILE = 50_000  # a file system counts them in 16 bits
_CLIPS_PER_PART = 250
_METHODS = ("tango", "visionzip", "vidcom2", "fastvid", "holitom", "divprune", "prunevid")


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("folder", type=Path)
    parser.add_argument("--clips", type=int, default=10_000)
    parser.add_argument("--cells", type=int, choices=[1, 21], default=1)
    parser.add_argument("--cached", type=float, default=0.0, help="share of the clips")
    parser.add_argument("--answered", type=float, default=0.0, help="share of the clips")
    parser.add_argument("--no-ray", action="store_true")
    options = parser.parse_args()
    table = write_manifest(options.folder, options.clips)
    job = recipe(table, options.cells)
    run_dir = new_run_dir(job, options.folder / "runs")
    if options.cached:
        in_child(lambda: fill(job, options.folder / "cache", options.cached))
    if options.answered:
        in_child(lambda: answer(job, options.folder, run_dir, options.answered))
    try:
        measure(job, options.folder, run_dir, ray=not options.no_ray)
    except Measured as measured:
        print(json.dumps(measured.args[0]))


class Measured(BaseException):
    """Ends the job once it is measured; it holds the figures."""


def in_child(work: Callable[[], None]) -> None:
    """Prepare something in a child, so that its memory is not the driver's."""
    if (child := os.fork()) == 0:
        work()
        os._exit(0)
    if os.waitpid(child, 0)[1]:
        raise RuntimeError("the caches or the run could not be prepared")


def recipe(table: Path, cells: int) -> Job:
    """The embedded model over the table: seven methods at three retentions, or one cell."""
    methods = [{"name": name, "retention": [0.1, 0.2, 0.3]} for name in _METHODS]
    return parse_job(
        {
            "benchmark": {"name": "custom", "root": str(table)},
            "methods": methods if cells == 21 else [{"name": "tango", "retention": 0.1}],
        },
        "planning",
    )


def write_manifest(folder: Path, num_clips: int) -> Path:
    """Write a table of `num_clips` clips with a question each, and the files it names."""
    for index in range(min(NUM_FILES, num_clips)):
        (folder / f"{index:03d}.mp4").write_bytes(b"a video")
    table = folder / "questions.csv"
    with table.open("w") as file:
        file.write("video,start,end,question,options,answer,task\n")
        for index in range(num_clips):
            number, start = index % NUM_FILES, index // NUM_FILES * 10
            file.write(
                f"{number:03d}.mp4,{start},{start + 10},What does the man hold in scene {index}?,"
                f"a cup|a book|a phone|nothing,{'ABCD'[index % 4]},action\n"
            )
    return table


def fill(job: Job, root: Path, share: float) -> None:
    """Let every cache of the job hold the first `share` of its clips."""
    plan = make_plan(job, build(job), str(root), answer=True)
    keys = plan.clips["clip_key"].to_pylist()[: round(plan.clips.num_rows * share)]
    for cache in plan.caches.values():
        folder = Path(cache.storage.root)
        folder.mkdir(parents=True)
        for index, key in enumerate(keys):
            if index % _LINKS_PER_FILE == 0:
                source = folder / f"{key}.parquet"
                source.write_bytes(b"an entry")
            else:
                os.link(source, folder / f"{key}.parquet")


def answer(job: Job, folder: Path, run_dir: Path, share: float) -> None:
    """Write a run that has answered the first `share` of the clips."""
    built, storage = build(job), Storage.at(run_dir)
    plan = make_plan(job, built, str(folder / "cache"), answer=True)
    claim(run_dir, job, open_storage=Storage.at, answers=True, recipe="")
    claim_caches(storage, run_dir, plan, continued=False)
    write_asked(plan.clips, storage)
    names = [method.name for method in plan.methods]
    asked = plan.clips.slice(0, round(plan.clips.num_rows * share))
    for number, start in enumerate(range(0, asked.num_rows, _CLIPS_PER_PART)):
        clips = asked.slice(start, _CLIPS_PER_PART)
        asked_ids = [json.loads(text)[0]["id"] for text in clips["questions"].to_pylist()]
        each = pa.array([at for at in range(len(clips)) for _ in names])
        failed = [(start + at) % 1000 == 7 for at in range(len(clips))]
        columns = {
            "benchmark": clips["benchmark"].take(each),
            "video_id": clips["video_id"].take(each),
            "question_id": pa.array(asked_ids).take(each),
            "status": pa.array(["answer_failed" if one else "ok" for one in failed]).take(each),
            "cell": pa.array(names * len(clips)),
            "prompt_tokens": pa.array([900] * len(each)),
        }
        rows = [columns.get(one.name, pa.nulls(len(each), one.type)) for one in ANSWER]
        name = f"part-{number:05d}-{number:012x}.parquet"
        table = pa.table(rows, schema=ANSWER)
        write_sealed(table, storage.child("answers"), name, run_dir.name)


def measure(job: Job, folder: Path, run_dir: Path, *, ray: bool) -> None:
    """Run the driver until it hands out clips; raises `Measured`."""
    started, cpu = time.perf_counter(), time.process_time()
    steps: dict[str, Any] = {"start_gib": peak_gib()}

    def mark(step: str) -> None:
        steps[f"{step}_s"] = round(time.perf_counter() - started, 2)
        steps[f"{step}_cpu_s"] = round(time.process_time() - cpu, 2)
        steps[f"{step}_gib"] = peak_gib()

    def stop_here(plan: Plan, settings: Settings) -> Iterator[Result]:
        """In the place of `pipeline.run`: everything before it is done."""
        mark("planned")
        steps["clips"] = plan.clips.num_rows
        lacking = pc.greater(pc.list_value_length(plan.clips["missing"]), 0)
        steps["clips_to_encode"] = pc.sum(lacking).as_py()
        if ray:
            hand_out(plan, settings)
            mark("handed_out")
        raise Measured(steps)

    built = build(job)
    mark("read")
    locations = Locations(folder / "runs", cache=str(folder / "cache"))
    console = Console(file=io.StringIO())
    execute(job, built, "sweep", locations, run_dir, console, run_plan=stop_here)


def hand_out(plan: Plan, settings: Settings) -> None:
    """Build the dataset that Ray would execute first; the time to start Ray itself is included."""
    from pipeline.executors import cluster, ray_data

    with cluster.connected():
        first = plan.clips.slice(0, ray_data._MAX_CLIPS_AT_ONCE)
        ray_data.build(replace(plan, clips=first), settings, ledger=None)


def peak_gib() -> float:
    """Largest resident memory of this process so far, in GiB."""
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return round(peak / (2**30 if sys.platform == "darwin" else 2**20), 3)


if __name__ == "__main__":
    main()
