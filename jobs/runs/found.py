"""Find runs in directories and stores by name or path, and determine their state."""

from __future__ import annotations

import json
import shutil
import sys
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any

import typer
from rich.console import Console

from jobs import exit_codes
from jobs.config import overrides
from jobs.config.recipe import parse_job
from jobs.results.facts import FACTS_FILE, JOB_FILE
from jobs.results.summary import SUMMARY_FILE
from jobs.run.run_dirs import recipe_name
from jobs.units import human_bytes
from pipeline.storage import Storage
from pipeline.storage.leases import Lease, LeaseError
from pipeline.storage.urls import Place, is_url, place
from tango_core.errors import InputError, MissingFileError

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

    def json(self, name: str) -> dict[str, Any] | None:
        """Content of a JSON file: empty if there is no such file, `None` if it is damaged."""
        try:
            found = json.loads(self.storage.read(name)) if name in self.files else {}
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
    own = run_at(where)
    return _runs_in(where, storage) if own is None else [own]


def _runs_in(where: Place, storage: Storage, prefix: str = "") -> list[FoundRun]:
    """The runs directly in a directory whose names begin with a prefix."""
    names = [name for name in storage.folders() if name.startswith(prefix)]
    return [run for name in names if (run := run_at(where / name)) is not None]


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
    runs = _runs_in(where, Storage.at(where), text)
    exact = [run for run in runs if run.name == text]
    if len(exact or runs) == 1:
        return (exact or runs)[0]
    if not runs:
        raise MissingFileError(
            f"{text}: no run in {root} has this name or begins with it; `tango runs ls {root}` "
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


Row = dict[str, Any]
"""What `tango runs ls --json` prints of a run; unknown values are `None`.

`run` (its name), `place`, `state` (`running` while a driver holds its lease, `stopped` without one
and without results, `finished`, `imported`, `comparison`, or `damaged` if one of its files cannot
be read), `recipe` (the file that it was made of), `command`, `model`, `benchmarks`, `cells`
(methods times benchmarks), `scores` (headline metrics of the cells, in [0, 1]), `failed_clips`,
`bytes`, and `started_at`.
"""


def state_of(run: FoundRun) -> Row:
    """Determine the state of a run, without writing anything or reading answers."""
    facts, summary = run.json(FACTS_FILE), run.json(SUMMARY_FILE)
    recipe, job, is_damaged = None, None, facts is None or summary is None
    facts, summary = facts or {}, summary or {}
    if JOB_FILE in run.files:
        try:
            content = run.storage.read(JOB_FILE)
            recipe = recipe_name(content) or None
            job = parse_job(overrides.recipe_of(content, JOB_FILE), JOB_FILE)
        except PermissionError:
            is_damaged = True
        except ValueError:  # e.g. a method whose package is not installed here
            pass
    state = "finished" if FACTS_FILE in run.files else "stopped"
    if is_damaged:
        state = "damaged"
    elif summary.get("kind") == "comparison":
        state = "comparison"
    elif facts.get("kind") == "import":
        state = "imported"
    elif is_running(run):
        state = "running"
    cells = summary.get("cells") or facts.get("cells") or []
    benchmarks = list(dict.fromkeys(str(one["benchmark"]) for one in cells))
    if job is not None and not cells:
        benchmarks = [section.name for section in job.all_benchmarks]
    scores = []
    for cell in summary.get("cells") or []:  # of any version
        headline = (cell.get("scores") or {}).get(cell.get("metric", "accuracy")) or {}
        scores.append(headline.get("value", cell.get("accuracy")))
    return {
        "run": run.name,
        "place": str(run.place),
        "state": state,
        "recipe": recipe,
        "command": facts.get("kind") or summary.get("kind"),
        "model": facts.get("model") or summary.get("model") or (job.model.name if job else None),
        "benchmarks": benchmarks,
        "cells": len(cells) or (len(job.all_methods) * len(benchmarks) if job else None),
        "scores": [one for one in scores if one is not None],
        "failed_clips": summary.get("num_failed_clips"),
        "bytes": size_of(run),
        "started_at": _started(facts, run.name),
    }


def is_running(run: FoundRun) -> bool:
    """Whether a driver may be working on a run."""
    store = run.storage.store
    if store is not None and not store.has_conditions:
        return False  # no job can run there
    has_lease = any(name.startswith(".lease") for name in run.files)
    return has_lease and Lease(run.storage).living() is not None


def size_of(run: FoundRun) -> int:
    """Size of all files of a run in bytes; links are not followed."""
    store = run.storage.store
    if store is not None:
        return sum(one.size for one in store.tree(run.storage.root))
    total = 0
    for path in Path(run.storage.root).rglob("*"):
        with suppress(OSError):  # removed since the directory was listed
            total += 0 if path.is_dir() else path.lstat().st_size
    return total


def _started(facts: Mapping[str, Any], name: str) -> str | None:
    """When a run began, by its facts or by the local time that its name begins with."""
    with suppress(ValueError):
        return datetime.fromisoformat(str(facts.get("started_at"))).astimezone().isoformat()
    with suppress(ValueError):
        return datetime.strptime(name[:15], "%Y%m%d-%H%M%S").astimezone().isoformat()
    return None


def remove(texts: Sequence[str], root: str, console: Console, *, yes: bool = False) -> int:
    """Remove runs after asking for confirmation; no link in them is followed.

    Args:
        texts: Runs, as `find_run` takes them.
        root: Directory or URL of runs that are named without one.
        console: Where the runs are listed and the question is asked.
        yes: Whether to remove without asking.

    Returns:
        Exit code: 1 if the answer is no.

    Raises:
        FileNotFoundError: If a run is not there; then nothing is removed.
        LeaseError: If a driver works on one; then nothing is removed.
        ValueError: If a run is a link, the working directory, or a directory with runs in it, or
            there is no terminal to ask on.
    """
    runs = {run.name: run for run in (find_run(text, root) for text in texts)}
    for run in runs.values():
        _raise_if_kept(run)
    for run in runs.values():
        console.print(f"{run.place}  {human_bytes(size_of(run))}", markup=False, soft_wrap=True)
    if not yes:
        if not (sys.stdin.isatty() and console.is_terminal):
            raise InputError("nothing was removed: there is no terminal to ask on; add --yes")
        what = "this run" if len(runs) == 1 else f"these {len(runs)} runs"
        if not typer.confirm(f"Remove {what} for good?", default=False):
            console.print("nothing was removed")
            return exit_codes.FAILED
    for run in runs.values():
        store = run.storage.store
        if store is None or store.has_conditions:
            try:
                Lease(run.storage).take()
            except LeaseError as error:
                raise LeaseError(_AT_WORK.format(run.place)) from error
        if store is None:
            shutil.rmtree(run.storage.root)
        else:
            for file in store.tree(run.storage.root):
                store.delete(file.path)
        console.print(f"removed {run.place}", markup=False, highlight=False, soft_wrap=True)
    return exit_codes.OK


_AT_WORK = (
    "{}: a driver works on this run, nothing was removed; wait for it or stop it (a dead driver's "
    "lease ends by itself within a minute)"
)


def _raise_if_kept(run: FoundRun) -> None:
    """Refuse to remove a link, the working directory, or a directory that holds other runs.

    Raises:
        LeaseError: If a driver works on it.
        ValueError: In all other cases.
    """
    if isinstance(run.place, Path):
        if run.place.is_symlink():
            raise InputError(f"{run.place} is a link; name the directory, or remove it with rm")
        # A report can be written into any directory, which is a run then.
        if Path.cwd().resolve().is_relative_to(run.place.resolve()):
            raise InputError(f"{run.place} is the working directory or above it; go elsewhere")
    if inside := _runs_in(run.place, run.storage):
        raise InputError(
            f"{run.place} holds other runs ({named(inside)}), nothing was removed; remove those "
            "by their names, and what a report wrote beside them with rm"
        )
    if is_running(run):
        raise LeaseError(_AT_WORK.format(run.place))
