"""Remove runs for good: `tango runs rm`.

A run that a driver works on stays. While its files go, the run's lease is held, so that no driver
can begin to continue it. Links inside a run go; what they lead to stays. The files that make a
directory a run go last, so that a removal that is stopped can be done again.
"""

from __future__ import annotations

import os
import shutil
import sys
from collections.abc import Sequence
from pathlib import Path

import typer
from rich.console import Console

from jobs import exit_codes
from jobs.results.facts import FACTS_FILE, JOB_FILE
from jobs.results.summary import SUMMARY_FILE
from jobs.runs.found import FoundRun, find_run, is_running, named, run_at, size_of
from jobs.units import human_bytes
from pipeline.runtime.clock import SYSTEM_CLOCK, Clock
from pipeline.storage.leases import Lease, LeaseError
from tango_core.errors import InputError

_LAST = (SUMMARY_FILE, FACTS_FILE, JOB_FILE)


def remove(
    texts: Sequence[str],
    root: str,
    console: Console,
    *,
    yes: bool = False,
    clock: Clock = SYSTEM_CLOCK,
) -> int:
    """Remove runs after asking for confirmation.

    Args:
        texts: Runs, as `find_run` takes them.
        root: Directory or URL of runs that are named without one.
        console: Where the runs are listed and the question is asked.
        yes: Whether to remove without asking.
        clock: For leases.

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
        _raise_if_kept(run, clock)
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
        _remove(run, clock)
        console.print(f"removed {run.place}", markup=False, highlight=False, soft_wrap=True)
    return exit_codes.OK


def _raise_if_kept(run: FoundRun, clock: Clock) -> None:
    """Refuse to remove a link, the working directory, or a directory that holds other runs.

    Raises:
        LeaseError: If a driver works on it.
        ValueError: In all other cases.
    """
    if isinstance(run.place, Path):
        if run.place.is_symlink():
            raise InputError(
                f"{run.place} is a link to {os.readlink(run.place)}; name that directory itself, "
                "or remove the link with rm"
            )
        # A report can be written into any directory, which is a run then.
        folder, here = run.place.resolve(), Path.cwd().resolve()
        if folder == here or folder in here.parents:
            raise InputError(
                f"{run.place} is the working directory or above it, nothing was removed; go "
                "elsewhere and name it from there"
            )
    inside = [one for name in run.storage.folders() if (one := run_at(run.place / name))]
    if inside:
        raise InputError(
            f"{run.place} holds other runs ({named(inside)}), nothing was removed; remove those "
            "by their names, and what a report wrote beside them with rm"
        )
    if is_running(run, clock):
        raise LeaseError(_refusal(run))


def _remove(run: FoundRun, clock: Clock) -> None:
    """Remove one run while holding its lease.

    Raises:
        LeaseError: If a driver has begun to work on it.
    """
    store = run.storage.store
    if store is None or store.has_conditions:
        try:
            Lease(run.storage, clock).take()
        except LeaseError as error:
            raise LeaseError(_refusal(run)) from error
    if store is not None:
        for path in sorted((one.path for one in store.tree(run.storage.root)), key=_order):
            store.delete(path)
        return
    folder = Path(run.storage.root)
    for entry in sorted(folder.iterdir(), key=lambda one: _order(one.name)):
        if entry.is_dir() and not entry.is_symlink():
            shutil.rmtree(entry)  # removes links in it, and follows none
        else:
            entry.unlink(missing_ok=True)
    folder.rmdir()


def _order(path: str) -> int:
    """Removal order of a file: files that mark a run come late, the lease last."""
    name = path.rpartition("/")[2]
    if name.startswith(".lease"):
        return len(_LAST) + 1
    return 1 + _LAST.index(name) if name in _LAST else 0


def _refusal(run: FoundRun) -> str:
    """Error message for a run that a driver works on."""
    return (
        f"{run.place}: a driver works on this run, nothing was removed; wait for it or stop it "
        "(a dead driver's lease ends by itself within a minute)"
    )
