"""Compare the speed of two commits in one run, and print what became slower by more than 10 %.

    python tests/perf/compare.py main HEAD [--rounds 3] [--only TEXT ...] [--seconds S]

Each commit is checked out into a temporary worktree. `bench.py --times` of this working tree runs
with the packages of one and the other in turn, so that a busy machine slows both; of every row the
smallest processor time over all rounds counts. The exit code is 1 if a row is slower.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
from pathlib import Path
from tempfile import TemporaryDirectory

ROOT = Path(__file__).parents[2]
SLOWER = 1.10


def main() -> int:
    """Measure both commits and print every row."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("commits", nargs=2, metavar="COMMIT")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--only", nargs="*", default=[""], help="texts in the names of rows")
    parser.add_argument("--seconds", type=float, default=1.0, help="for a row and round")
    options = parser.parse_args()
    arguments = ["--times", "--seconds", str(options.seconds), "--only", *options.only]
    found: list[dict[str, float]] = [{}, {}]
    with TemporaryDirectory(prefix="tango-compare-") as folder:
        trees = [Path(folder) / str(index) for index in range(2)]
        try:
            for tree, commit in zip(trees, options.commits, strict=True):
                _git("worktree", "add", "--detach", "--quiet", str(tree), commit)
            for _ in range(options.rounds):
                for tree, best in zip(trees, found, strict=True):
                    for row, value in _times(tree, arguments).items():
                        best[row] = min(value, best.get(row, value))
        finally:
            for tree in trees:
                if tree.exists():
                    _git("worktree", "remove", "--force", str(tree))
    before, after = found
    ratios = sorted(
        ((after[row] / before[row], row) for row in before if row in after), reverse=True
    )
    for ratio, row in ratios:
        mark = "SLOWER" if ratio > SLOWER else ""
        print(f"{ratio:6.2f}  {before[row]:9.1f} -> {after[row]:9.1f} ms  {row}  {mark}")
    return int(any(ratio > SLOWER for ratio, _ in ratios))


def _times(tree: Path, arguments: list[str]) -> dict[str, float]:
    """Milliseconds of every row with the packages of a worktree."""
    command = [sys.executable, str(Path(__file__).with_name("bench.py")), *arguments]
    environment = {**os.environ, "PYTHONPATH": str(tree), "OMP_NUM_THREADS": "1"}
    done = subprocess.run(
        command, env=environment, cwd=tree, check=True, stdout=subprocess.PIPE, text=True
    )
    times: dict[str, float] = json.loads(done.stdout.splitlines()[-1])
    return times


def _git(*arguments: str) -> None:
    subprocess.run(["git", "-C", str(ROOT), *arguments], check=True)


if __name__ == "__main__":
    sys.exit(main())
