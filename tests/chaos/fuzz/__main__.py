"""`make fuzz SEED= N=`: many damaged files, one after the other, counted by how they ended."""

from __future__ import annotations

import argparse
import sys
import time
from collections import Counter
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "fixtures"))

from tests.chaos.fuzz.run import KINDS, cases, run_case


def main() -> int:
    """Run, count, tell."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--number", type=int, default=5_000)
    parser.add_argument("--kind", choices=KINDS, help="only these files")
    options = parser.parse_args()
    kinds = KINDS if options.kind is None else (options.kind,)
    ends: Counter[tuple[str, str]] = Counter()
    seconds: Counter[str] = Counter()
    problems: Counter[str] = Counter()
    for kind, seed in cases(options.seed, options.number, kinds):
        begun = time.monotonic()
        outcome = run_case(kind, seed)
        seconds[kind] += time.monotonic() - begun  # type: ignore[assignment]
        ends[kind, outcome.what] += 1
        if outcome.problem:
            problems[kind] += 1
            text = f"{kind} {seed}: {outcome.about}: {outcome.problem} {outcome.mutations}"
            print(text[:1500], flush=True)
    for kind in kinds:
        number = sum(count for (one, _), count in ends.items() if one == kind)
        print(f"\n{kind}: {number} cases, {problems[kind]} problems, {seconds[kind]:.0f} s")
        for (one, what), count in ends.most_common():
            if one == kind:
                print(f"  {count:6d}  {what}")
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main())
