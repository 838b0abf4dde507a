"""What a command that runs jobs prints where: its options `--quiet` and `--json`."""

from __future__ import annotations

import logging
import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Console

if TYPE_CHECKING:
    from jobs.config.recipe import Job
    from jobs.run.display import Display

logger = logging.getLogger(__name__)

Quiet = Annotated[bool, typer.Option("--quiet", help="Only results, warnings and errors.")]
Json = Annotated[
    bool,
    typer.Option("--json", help="One JSON event per line on standard output; the rest on error."),
]


def console_of(json: bool) -> Console:
    """Where people read; standard output belongs to the events if there are any."""
    return Console(stderr=json)


def announce(jobs: Sequence[Job], command: str, quiet: bool) -> None:
    """Say what starts, before the libraries are imported that take seconds."""
    if quiet:
        return
    for job in jobs:
        names = [name for name, _ in job.all_methods]
        what = names[0] if len(names) == 1 else f"{len(names)} methods"
        on = ", ".join(section.name for section in job.all_benchmarks)
        logger.info("%s: %s on %s with %s", command, what, on, job.model.name)


def display_of(console: Console, quiet: bool, json: bool) -> Display:
    """How the jobs of a command are shown."""
    from jobs.run.display import Display

    if quiet:
        logging.getLogger().setLevel(logging.WARNING)
    return Display.on(console, quiet=quiet, events=sys.stdout if json else None)
