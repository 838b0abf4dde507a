"""Where the time of a small job on a local Ray goes, beside the same job in a loop.

    python tests/perf/bench_start_on_ray.py [--repeats 3]

40 clips and 189 questions with the embedded model, empty caches, one thread, in turn with a bare
`ray.init` and the first task of a Ray. Processes are looked at every 200 ms: what each used by its
end, and when the milestones of the job were there. What a process used after its last look is
missing. Results go to tests/perf/results/start_on_ray.md.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import time
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory

import psutil

sys.path.insert(0, str(Path(__file__).parent))

from timing import about_machine

RESULTS = Path(__file__).parent / "results" / "start_on_ray.md"
BARE = """
import ray
ray.init(address="local", include_dashboard=False, log_to_driver=False)
ray.get(ray.remote(lambda: 1).remote())
print("first task", flush=True)
"""
# What stands in the command line of a process -> what it is; the first that fits.
ROLES = {
    "jobs.cli.entry": "driver",
    "child_main": "decode children",
    "CompressVideo": "actor that encodes and compresses",
    "AnswerQuestions": "actor that answers",
    "decode_video": "decode workers",
    "JobLedger": "ledger",
    "_StatsActor": "Ray Data's own actors",
    "_AutoscalingCoordinator": "Ray Data's own actors",
    "ActorLocationTracker": "Ray Data's own actors",
    "ray/dashboard": "Ray's own processes",
    "ray/_private": "Ray's own processes",
    "ray/autoscaler": "Ray's own processes",
    "ray/core": "Ray's own processes",
    "ray::DashboardAgent": "Ray's own processes",
    "ray::RuntimeEnvAgent": "Ray's own processes",
    "ray::IDLE": "workers without work",
}
MILESTONES = ("first decode child", "first token set", "summary", "end")


@dataclass
class Watched:
    """One run of a command.

    Attributes:
        wall_s: From its start to its end.
        cpu_s: Role -> processor seconds.
        at_s: Milestone -> seconds after the start.
    """

    wall_s: float = 0.0
    cpu_s: dict[str, float] = field(default_factory=lambda: defaultdict(float))
    at_s: dict[str, float] = field(default_factory=dict)


def main() -> None:
    """Run all in turn and write the table."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--repeats", type=int, default=3)
    repeats = parser.parse_args().repeats
    runs: dict[str, list[Watched]] = {"bare Ray": [], "local": [], "ray": []}
    with TemporaryDirectory(prefix="tango-start-") as folder:
        root = Path(folder)
        job("local", root / "first")  # makes the clips
        for turn in range(repeats):
            runs["bare Ray"].append(bare(root / f"bare-{turn}"))
            for executor in ("local", "ray"):
                runs[executor].append(job(executor, root / f"{executor}-{turn}"))
    RESULTS.write_text("\n".join(table(runs)) + "\n")


def bare(output: Path) -> Watched:
    """Ray alone, up to the end of its first task."""
    return watched([sys.executable, "-c", BARE], output)


def job(executor: str, output: Path) -> Watched:
    """`tango sweep` of one setting."""
    recipe = {
        "benchmark": {"name": "shapes", "root": str(output.parent / "shapes")},
        "model": {"name": "tiny", "num_frames": 8},
        "methods": [{"name": "full"}],
        "executor": executor,
    }
    output.mkdir()
    (output / "recipe.yaml").write_text(json.dumps(recipe))
    command = [sys.executable, "-m", "jobs.cli.entry", "sweep", str(output / "recipe.yaml")]
    command += ["--limit", "40", "--output", str(output), "--cache", str(output / "cache")]
    return watched(command, output)


def watched(command: Sequence[str], output: Path) -> Watched:
    """Run a command and look at it and all its children.

    Raises:
        RuntimeError: If it fails.
    """
    found, used, roles = Watched(), dict[int, float](), dict[int, str]()
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    output.mkdir(exist_ok=True)
    with (output / "log").open("w+") as log:
        started = time.perf_counter()
        process = subprocess.Popen(command, env=environment, stdout=log, stderr=log)
        looked_at = psutil.Process(process.pid)
        while process.poll() is None:
            now = time.perf_counter() - started
            for one in [looked_at, *looked_at.children(recursive=True)]:
                try:
                    spent, line = one.cpu_times(), " ".join(one.cmdline())
                except psutil.Error:
                    continue
                used[one.pid] = spent.user + spent.system
                role = next((role for mark, role in ROLES.items() if mark in line), "")
                # The title of a worker says what it does; one that waits keeps what it was.
                if role and (role != "workers without work" or one.pid not in roles):
                    roles[one.pid] = role
                if role == "decode children":
                    found.at_s.setdefault("first decode child", now)
            if "first task" in (output / "log").read_text():
                found.at_s.setdefault("first task", now)
            if any(output.glob("cache/*/*.parquet")):
                found.at_s.setdefault("first token set", now)
            if any(output.glob("*/summary.json")):
                found.at_s.setdefault("summary", now)
            time.sleep(0.2)
        found.wall_s = found.at_s["end"] = time.perf_counter() - started
        log.seek(0)
        if process.returncode:
            raise RuntimeError(
                f"{command[:4]} ended with {process.returncode}: {log.read()[-800:]}"
            )
    for pid, seconds in used.items():
        found.cpu_s[roles.get(pid, "other")] += seconds
    return found


def table(runs: dict[str, list[Watched]]) -> list[str]:
    """The results as Markdown."""

    def middle(name: str, role: str) -> str:
        seconds = median(run.cpu_s.get(role, 0.0) for run in runs[name])
        return f"{seconds:.1f}" if seconds else "-"

    def reached(name: str, milestone: str) -> str:
        times = [run.at_s[milestone] for run in runs[name] if milestone in run.at_s]
        return f"{median(times):.1f}" if times else "-"

    cores = os.cpu_count() or 1
    total = {name: median(sum(run.cpu_s.values()) for run in runs[name]) for name in runs}
    return [
        "# A small job on a local Ray",
        "",
        ", ".join(f"{name} {value}" for name, value in about_machine().items()),
        "",
        "`python tests/perf/bench_start_on_ray.py`: 40 clips, 189 questions, the embedded model,",
        f"one setting, empty caches, one thread; medians of {len(runs['ray'])} runs in turn.",
        "*Bare Ray*: a process that imports Ray, starts it, and ends after its first task.",
        "",
        "| seconds after the start | loop | on Ray |",
        "|---|---|---|",
        *(f"| {one} | {reached('local', one)} | {reached('ray', one)} |" for one in MILESTONES),
        "",
        f"Bare Ray: its first task has ended after {reached('bare Ray', 'first task')} s, and all "
        f"after {reached('bare Ray', 'end')} s.",
        "",
        "| processor seconds of | bare Ray | loop | on Ray |",
        "|---|---|---|---|",
        *(
            f"| {role} | {middle('bare Ray', role)} | {middle('local', role)} "
            f"| {middle('ray', role)} |"
            for role in dict.fromkeys([*ROLES.values(), "other"])
            if any(run.cpu_s.get(role) for several in runs.values() for run in several)
        ),
        f"| **all** | {total['bare Ray']:.1f} | {total['local']:.1f} | {total['ray']:.1f} |",
        "",
        f"On Ray all processes together work {total['ray'] - total['local']:.1f} s longer than the",
        f"loop: {(total['ray'] - total['local']) / cores:.1f} s of all cores of this machine. "
        "Driver and actors import torch and",
        "transformers three times instead of once; the rest is Ray and its workers.",
    ]


if __name__ == "__main__":
    main()
