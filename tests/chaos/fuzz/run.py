"""`make fuzz SEED= N=`: many damaged files, one after the other, counted by how they ended."""

from __future__ import annotations

import argparse
import sys
import traceback
from collections import Counter
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from tempfile import mkdtemp

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "fixtures"))

from pipeline.runtime.child import Child, CrashError
from tests.chaos.fuzz.damage import Outcome

KINDS = ("videos", "files")

# Address space with torch and pyarrow loaded, and what a damaged file may cost.
_MEMORY_GIB = 10.0
_LIMIT_S = 120.0


def cases(seed: int, number: int, kinds: tuple[str, ...] = KINDS) -> Iterator[tuple[str, int]]:
    """Kind and seed of so many cases."""
    return ((kinds[at % len(kinds)], at) for at in range(seed, seed + number))


def run_case(kind: str, seed: int) -> Outcome:
    """Run one case; a process of its own reads files other than videos."""
    if kind == "videos":
        from tests.chaos.fuzz.video_cases import judged, video_case

        return judged(video_case(seed))
    try:
        return _child().call(
            run_in_child, seed, timeout_s=_LIMIT_S, about=f"{kind} {seed}", what="reader"
        )
    except (TimeoutError, CrashError, MemoryError) as error:
        return Outcome(kind, "", type(error).__name__, str(error))


def run_in_child(seed: int) -> Outcome:
    """Run one case about files that are read in Python."""
    from tests.chaos.fuzz.file_cases import run_file_case

    try:
        return run_file_case(seed, _folder())
    except Exception:
        return Outcome("files", "", "traceback", traceback.format_exc()[-1500:])


@cache
def _folder() -> Path:
    return Path(mkdtemp(prefix="fuzz-"))


@cache
def _child() -> Child:
    return Child(memory_gib=_MEMORY_GIB)


def main() -> int:
    """Run many cases and print their counts."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--number", type=int, default=5_000)
    parser.add_argument("--kind", choices=KINDS, help="only these files")
    options = parser.parse_args()
    ends: Counter[tuple[str, str]] = Counter()
    problems = 0
    for kind, seed in cases(
        options.seed, options.number, (options.kind,) if options.kind else KINDS
    ):
        outcome = run_case(kind, seed)
        ends[kind, outcome.what] += 1
        if outcome.problem:
            problems += 1
            text = f"{kind} {seed}: {outcome.about}: {outcome.problem} {outcome.mutations}"
            print(text[:1500], flush=True)
    for (kind, what), count in ends.most_common():
        print(f"  {count:6d}  {kind}: {what}")
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main())
