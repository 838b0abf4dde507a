"""What a command that runs jobs prints where: its options `--quiet` and `--json`."""

from __future__ import annotations

import logging
import sys
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Console

if TYPE_CHECKING:
    from jobs.run.display import Display

Quiet = Annotated[bool, typer.Option("--quiet", help="Only results, warnings and errors.")]
Json = Annotated[
    bool,
    typer.Option("--json", help="One JSON event per line on standard output; the rest on error."),
]


def console_of(json: bool) -> Console:
    """Where people read; standard output belongs to the events if there are any."""
    return Console(stderr=json)


def display_of(console: Console, quiet: bool, json: bool) -> Display:
    """How the jobs of a command are shown."""
    from jobs.run.display import Display

    if quiet:
        logging.getLogger().setLevel(logging.WARNING)
    return Display.on(console, quiet=quiet, events=sys.stdout if json else None)
