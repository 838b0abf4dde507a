"""Find runs in directories and stores by name or path, and determine their state."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Literal

from jobs.config.overrides import recipe_of
from jobs.config.recipe import parse_job
from jobs.results.facts import FACTS_FILE, JOB_FILE
from jobs.results.summary import SUMMARY_FILE
from jobs.run.run_dirs import recipe_name
from pipeline.runtime.clock import SYSTEM_CLOCK, Clock
from pipeline.storage import Storage
from pipeline.storage.leases import Lease
from pipeline.storage.urls import Place, is_url, place
from tango_core.errors import MissingFileError

_MARKS = (JOB_FILE, FACTS_FILE, SUMMARY_FILE)


@dataclass(frozen=True)
class FoundRun:
    """A directory that a job, an import or a comparison has written.

    Attributes:
        place: Path or URL.
        storage: The same, opened.
        files: Names of the files directly in it, including hidden ones.
    """

    place: Place
    storage: Storage
    files: frozenset[str]

    @property
    def name(self) -> str:
        """Name of the directory, without those around it."""
        return self.place.name if not isinstance(self.place, Path) else self.place.absolute().name

    def read(self, name: str) -> bytes | None:
        """Content of a file directly in it; `None` if there is no such file."""
        try:
            return self.storage.read(name) if name in self.files else None
        except FileNotFoundError:  # it was removed since the directory was listed
            return None

    def json(self, name: str) -> dict[str, Any] | None:
        """Content of a JSON file: empty if there is no such file, `None` if it is damaged."""
        try:
            content = self.read(name)
            found = {} if content is None else json.loads(content)
        except (ValueError, PermissionError):
            return None
        return found if isinstance(found, dict) else None


def find_runs(root: str) -> list[FoundRun]:
    """The runs directly in a directory, by name; a run itself stands for itself.

    Raises:
        FileNotFoundError: If there is no such directory.
    """
    where = place(root)
    storage = Storage.at(where)
    if not storage.is_folder():
        raise MissingFileError(
            f"{root}: no such directory; name the --output of your jobs, a path or a URL"
        )
    if (own := run_at(where)) is not None:
        return [own]
    found = (run_at(where / name) for name in storage.folders())
    return [one for one in found if one is not None]


def find_run(text: str, root: str) -> FoundRun:
    """Find a run by path, URL, name or prefix of its name.

    Args:
        text: Path or URL of a run, or the name of one in `root`, or the beginning of one.
        root: Directory or URL of runs.

    Raises:
        FileNotFoundError: If there is none, or several begin like that.
    """
    if (own := run_at(place(text))) is not None:
        return own
    if is_url(text) or "/" in text.rstrip("/"):
        raise MissingFileError(f"{text} is not a run: it holds none of {', '.join(_MARKS)}")
    where = place(root)
    names = [one for one in Storage.at(where).folders() if one.startswith(text)]
    runs = [run for name in names if (run := run_at(where / name)) is not None]
    exact = [run for run in runs if run.name == text]
    if len(exact or runs) == 1:
        return (exact or runs)[0]
    if not runs:
        raise MissingFileError(
            f"{text}: no run of {root} has this name or begins with it; `tango runs ls {root}` "
            "lists them"
        )
    raise MissingFileError(f"{text}: {len(runs)} runs of {root} begin with it: {named(runs)}")


def run_at(where: Place) -> FoundRun | None:
    """The run in a directory; `None` if it is none, or a file."""
    if isinstance(where, Path) and not where.is_dir():
        return None
    storage = Storage.at(where)
    files = frozenset(file.name for file in storage.files())
    return FoundRun(where, storage, files) if files & set(_MARKS) else None


def named(runs: Sequence[FoundRun]) -> str:
    """Some names for a message."""
    return ", ".join(run.name for run in runs[:5]) + (", …" if len(runs) > 5 else "")


State = Literal["running", "stopped", "finished", "imported", "comparison", "damaged"]


@dataclass(frozen=True)
class RunState:
    """State of a run for `tango runs ls`.

    Attributes:
        run: The directory.
        state: `running` while a driver holds its lease, `stopped` without one and without results,
            `damaged` if one of its files cannot be read.
        recipe: The recipe file that it was made of; "" if unknown.
        command: `evaluate`, `sweep`, `precompute`, `import`, `comparison`; "" if unknown.
        model: Entry of `MODELS`; "" if unknown.
        benchmarks: Its benchmarks.
        num_cells: Methods times benchmarks; `None` if unknown.
        scores: Headline metrics of its cells, in [0, 1]; empty without results.
        num_failed: Number of failed clips; `None` without results.
        num_bytes: Size of all its files.
        started: When it began; `None` if unknown.
    """

    run: FoundRun
    state: State
    recipe: str
    command: str
    model: str
    benchmarks: tuple[str, ...]
    num_cells: int | None
    scores: tuple[float, ...]
    num_failed: int | None
    num_bytes: int
    started: datetime | None

    @property
    def age_s(self) -> float | None:
        """Seconds since the run began; `None` if unknown."""
        if self.started is None:
            return None
        return max(0.0, (datetime.now(UTC) - self.started).total_seconds())

    def to_json(self) -> dict[str, Any]:
        """Plain data, for scripts."""
        return {
            "run": self.run.name,
            "place": str(self.run.place),
            "state": self.state,
            "recipe": self.recipe or None,
            "command": self.command or None,
            "model": self.model or None,
            "benchmarks": list(self.benchmarks),
            "cells": self.num_cells,
            "scores": list(self.scores),
            "failed_clips": self.num_failed,
            "bytes": self.num_bytes,
            "started_at": self.started.isoformat() if self.started else None,
        }


def state_of(run: FoundRun, clock: Clock = SYSTEM_CLOCK) -> RunState:
    """Determine the state of a run, without writing anything or reading answers."""
    facts, summary = run.json(FACTS_FILE), run.json(SUMMARY_FILE)
    recipe, job, is_readable = "", None, facts is not None and summary is not None
    facts, summary = facts or {}, summary or {}
    try:
        content = run.read(JOB_FILE)
        if content is not None:
            recipe = recipe_name(content)
            job = parse_job(recipe_of(content, JOB_FILE), JOB_FILE)
    except PermissionError:
        is_readable = False
    except (ValueError, OSError):  # e.g. a method whose package is not installed here
        pass
    state: State = "stopped"
    if not is_readable:
        state = "damaged"
    elif summary.get("kind") == "comparison":
        state = "comparison"
    elif facts.get("kind") == "import":
        state = "imported"
    elif is_running(run, clock):
        state = "running"
    elif FACTS_FILE in run.files:
        state = "finished"
    cells = summary.get("cells") or facts.get("cells") or []
    benchmarks = [str(one["benchmark"]) for one in cells]
    if job is not None and not cells:
        benchmarks = [section.name for section in job.all_benchmarks]
    headlines = [_headline(one) for one in summary.get("cells") or []]
    return RunState(
        run,
        state,
        recipe=recipe,
        command=str(facts.get("kind") or summary.get("kind") or ""),
        model=str(facts.get("model") or summary.get("model") or (job.model.name if job else "")),
        benchmarks=tuple(dict.fromkeys(benchmarks)),
        num_cells=len(cells) or (len(job.all_methods) * len(benchmarks) if job else None),
        scores=tuple(one for one in headlines if isinstance(one, (int, float))),
        num_failed=summary.get("num_failed_clips"),
        num_bytes=size_of(run),
        started=_started(facts, run.name),
    )


def is_running(run: FoundRun, clock: Clock = SYSTEM_CLOCK) -> bool:
    """Whether a driver may be working on a run."""
    store = run.storage.store
    if store is not None and not store.has_conditions:
        return False  # no job can run there
    has_lease = any(name.startswith(".lease") for name in run.files)
    return has_lease and Lease(run.storage, clock).living() is not None


def size_of(run: FoundRun) -> int:
    """Size of all files of a run in bytes; links are not followed."""
    store = run.storage.store
    if store is not None:
        return sum(one.size for one in store.tree(run.storage.root))
    total = 0
    for folder, _, names in os.walk(run.storage.root):
        for name in names:
            with suppress(OSError):  # removed since the directory was listed
                total += os.lstat(os.path.join(folder, name)).st_size
    return total


def _headline(cell: Mapping[str, Any]) -> object:
    """Headline metric of a cell in a summary of any version."""
    scores = cell.get("scores") or {}
    own = scores.get(cell.get("metric", "accuracy")) or {}
    return own.get("value", cell.get("accuracy"))


def _started(facts: Mapping[str, Any], name: str) -> datetime | None:
    """When a run began, by its facts or by the local time that its name begins with."""
    with suppress(ValueError):
        return datetime.fromisoformat(str(facts.get("started_at"))).astimezone()
    with suppress(ValueError):
        return datetime.strptime(name[:15], "%Y%m%d-%H%M%S").astimezone()
    return None
