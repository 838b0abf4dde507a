"""Time and memory of planning manifests of 10,000, 100,000, ... clips; a bar at 1,000,000.

    python tests/perf/bench_planning.py [--threads 1] [--clips 1000000]

Two jobs over a table of questions: a sweep of 21 cells (7 methods x 3 retentions) with empty
caches, which has the largest plan, and one cell with half of its clips in the cache. Each runs in a
process of its own (`planning.py`), the driver's own code from the recipe up to the first hand-over
to Ray. Memory is the process's peak, with everything it imports; the growth per clip is compared
between sizes, because a fixed start-up hides in small ones.

Results go to tests/perf/results/pipeline_planning.{json,md}.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
from itertools import pairwise
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

sys.path.insert(0, str(Path(__file__).parent))

JOBS = {
    "21 cells, empty caches": ["--cells", "21"],
    "1 cell, half of it cached": ["--cells", "1", "--cached", "0.5"],
}
LARGEST = 1_000_000
BAR_S, BAR_GIB = 300, 4
STEPS = ("read", "planned", "handed_out")


def main() -> None:
    """Measure all sizes and write the results."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--clips", type=int, default=LARGEST, help="of the largest manifest")
    options = parser.parse_args()
    sizes = [options.clips // 100, options.clips // 10, options.clips]
    cases = []
    for name, arguments in JOBS.items():
        for size in sizes:
            cases.append({"job": name, **measure(size, arguments)})
            print(json.dumps(cases[-1]))
    # Imported late: a child's peak starts with what its parent held when it was forked.
    from timing import about_machine

    results = {"machine": about_machine(), "cases": cases, "growth": growth(cases)}
    text = markdown(results)
    folder = Path(__file__).parent / "results"
    (folder / "pipeline_planning.json").write_text(json.dumps(results, indent=1) + "\n")
    (folder / "pipeline_planning.md").write_text(text)
    print(text)


def measure(num_clips: int, arguments: list[str]) -> dict[str, Any]:
    """Plan one manifest in a process of its own."""
    with TemporaryDirectory(prefix="tango-bench-") as folder:
        script = str(Path(__file__).parent / "planning.py")
        command = [sys.executable, script, folder, "--clips", str(num_clips), *arguments]
        done = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True)
    found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return found


def growth(cases: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Microseconds and bytes per further clip between neighbouring sizes of a job.

    Up to the plan: what is handed to Ray at once is bounded.
    """
    return [
        {
            "job": small["job"],
            "from": small["clips"],
            "to": large["clips"],
            "us_per_clip": round(
                (large["planned_s"] - small["planned_s"]) / (large["clips"] - small["clips"]) * 1e6,
                1,
            ),
            "bytes_per_clip": round(
                (large["planned_gib"] - small["planned_gib"])
                / (large["clips"] - small["clips"])
                * 2**30
            ),
        }
        for small, large in pairwise(cases)
        if small["job"] == large["job"]
    ]


def markdown(results: dict[str, Any]) -> str:
    """The results as two tables."""
    about = ", ".join(f"{key} {value}" for key, value in results["machine"].items())
    lines = ["# Planning a manifest", "", about, ""]
    lines += [
        "Seconds since the start and peak memory of the driver, in GiB, once the manifest is read, "
        "the clips are planned, and the first of them are with Ray (which it starts itself).",
        "",
        "| job | clips | read | planned | handed out | bar |",
        "|---|---|---|---|---|---|",
    ]
    for case in results["cases"]:
        cells = [f"{case[f'{step}_s']:.1f} s, {case[f'{step}_gib']:.2f}" for step in STEPS]
        lines.append(
            f"| {case['job']} | {case['clips']:,} | {' | '.join(cells)} | {verdict(case)} |"
        )
    lines += ["", "Linear is: what one more clip costs does not grow with their number.", ""]
    lines += ["| job | clips | us per clip | bytes per clip |", "|---|---|---|---|"]
    for row in results["growth"]:
        span = f"{row['from']:,} to {row['to']:,}"
        lines.append(
            f"| {row['job']} | {span} | {row['us_per_clip']} | {row['bytes_per_clip']:,} |"
        )
    return "\n".join(lines) + "\n"


def verdict(case: dict[str, Any]) -> str:
    """The bar and whether it is met; it is set for a million clips."""
    if case["clips"] < LARGEST:
        return "-"
    met = case["handed_out_s"] < BAR_S and case["handed_out_gib"] < BAR_GIB
    return f"< {BAR_S} s, < {BAR_GIB} GiB: {'met' if met else 'MISSED'}"


if __name__ == "__main__":
    main()
