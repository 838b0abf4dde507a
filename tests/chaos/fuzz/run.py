"""Run cases in a process of their own, which has a time and a memory limit."""

from __future__ import annotations

from collections.abc import Iterator
from functools import cache
from pathlib import Path
from tempfile import mkdtemp

from pipeline.runtime.child import Child, CrashError
from tests.chaos.fuzz.cases import Outcome

KINDS = ("videos", "files", "recipes", "annotations")
SHARES = {"videos": 3, "files": 2, "recipes": 3, "annotations": 3}

# Address space with torch, pyarrow, pandas and matplotlib loaded, and what a damaged file may cost.
_MEMORY_GIB = 10.0
_LIMIT_S = 120.0


def cases(seed: int, number: int, kinds: tuple[str, ...] = KINDS) -> Iterator[tuple[str, int]]:
    """Kind and seed of so many cases."""
    turns = [kind for kind in kinds for _ in range(SHARES[kind])]
    for at in range(seed, seed + number):
        yield turns[at % len(turns)], at


def run_case(kind: str, seed: int) -> Outcome:
    """One case, whatever it does to the process that works on it."""
    if kind == "videos":
        from tests.chaos.fuzz.video_cases import judged, video_case

        return judged(video_case(seed))
    try:
        return _child().call(
            run_in_child, kind, seed, timeout_s=_LIMIT_S, about=f"{kind} {seed}", what="reader"
        )
    except TimeoutError as error:
        return Outcome(kind, "", "hang", str(error))
    except CrashError as error:
        return Outcome(kind, "", "crash", str(error))
    except MemoryError as error:
        return Outcome(kind, "", "memory", str(error))


def run_in_child(kind: str, seed: int) -> Outcome:
    """One case about files that are read in Python."""
    if kind == "files":
        from tests.chaos.fuzz.file_cases import run_file_case as run
    elif kind == "recipes":
        from tests.chaos.fuzz.recipe_cases import run_recipe_case as run
    else:
        from tests.chaos.fuzz.annotation_cases import run_annotation_case as run
    return run(seed, _folder())


@cache
def _folder() -> Path:
    return Path(mkdtemp(prefix="fuzz-"))


@cache
def _child() -> Child:
    return Child(memory_gib=_MEMORY_GIB)
