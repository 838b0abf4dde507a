"""Run the benchmarks: `make bench`, or `python -m tests.perf.bench` with names.

Each runs in a process of its own, with as many threads as it says before any library starts them.
Times are ratios to something measured beside them, because absolute times depend on the machine;
only planning, which has a bar in seconds, and estimates are not. Pipeline and planning take five
minutes each.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
from pathlib import Path

FOLDER = Path(__file__).parent
BENCHMARKS = {
    "compress": ("bench_compress.py", 1, ["--repeats", "8"]),
    "compress-2": ("bench_compress.py", 2, ["--repeats", "8"]),
    "methods": ("bench_methods.py", 1, []),
    "floors": ("bench_floors.py", 1, []),
    "pipeline": ("bench_pipeline.py", 1, []),
    "planning": ("bench_planning.py", 1, []),
    "estimate": ("bench_estimate.py", 1, []),
}


def main() -> int:
    """Run the named benchmarks, or all; the exit code is that of the first to fail."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("names", nargs="*", metavar="name", help=", ".join(BENCHMARKS))
    names = parser.parse_args().names or list(BENCHMARKS)
    if unknown := sorted(set(names) - set(BENCHMARKS)):
        parser.error(f"unknown benchmark {unknown[0]!r}; choose among: {', '.join(BENCHMARKS)}")
    codes = [run(*BENCHMARKS[name]) for name in names]
    return next((code for code in codes if code), 0)


def run(script: str, threads: int, arguments: list[str]) -> int:
    """Run one script with a number of threads."""
    command = [sys.executable, str(FOLDER / script), "--threads", str(threads), *arguments]
    environment = {**os.environ, "OMP_NUM_THREADS": str(threads)}
    return subprocess.run(command, env=environment, check=False).returncode


if __name__ == "__main__":
    sys.exit(main())
