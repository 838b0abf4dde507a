"""Time and memory of reducing the answers of a run to its summary, in a process of its own.

    python tests/perf/reducing.py RUN

`RUN` is a run directory, e.g. of `synthetic_answers.py`. Prints one line of JSON: answers, wall and
processor seconds of reading and checking alone, of reading and reducing, and of the numbers, and
the process's peak memory in GiB after each.
"""

from __future__ import annotations

import argparse
import json
import os
import time
from pathlib import Path
from typing import Any

from planning import peak_gib

from jobs.results.facts import JobFacts
from jobs.results.summary import reduce_runs, save_summary, summarize_reduced


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("run", type=Path)
    options = parser.parse_args()
    print(json.dumps(measure(options.run)))


def measure(run: Path) -> dict[str, Any]:
    """Reduce one run as `tango report` does."""
    found: dict[str, Any] = {"load": round(os.getloadavg()[0], 1), "start_gib": peak_gib()}
    started, busy = time.perf_counter(), time.process_time()

    def mark(step: str) -> None:
        found[f"{step}_s"] = round(time.perf_counter() - started, 1)
        found[f"{step}_cpu_s"] = round(time.process_time() - busy, 1)
        found[f"{step}_gib"] = peak_gib()

    facts = JobFacts.load(run)
    reduction = reduce_runs([run], facts.mode)
    mark("reduced")
    summary = summarize_reduced(reduction, facts)
    save_summary(summary, run)
    mark("summarized")
    counts = summary.counts
    return {"answers": counts.num_questions, "questions": counts.num_different, **found}


if __name__ == "__main__":
    main()
