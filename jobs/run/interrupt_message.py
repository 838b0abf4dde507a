"""Message printed when a command is interrupted: what is kept, and how to continue.

Imports the standard library alone: a signal may come before anything else is loaded.
"""

from __future__ import annotations

import shlex
import signal
import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pipeline.runtime.stopping import Stopped
    from pipeline.storage.urls import Place


class _Standing:
    """How far the command of this process is."""

    run: Place | None = None
    recipe: Place | None = None
    is_complete = False
    caches_only = False
    text: str | None = None


def leaves_behind(text: str) -> None:
    """From now on something else than a run is left, which `text` tells."""
    _Standing.text = text


def works_on(run: Place, *, recipe: Place | None = None, caches_only: bool = False) -> None:
    """From now on there is a run to go on with.

    Args:
        run: Its directory.
        recipe: Goes on with this run alone, where the command line stands for several runs.
        caches_only: Whether the command fills caches, which the same command continues.
    """
    _Standing.run, _Standing.recipe = run, recipe
    _Standing.caches_only, _Standing.is_complete = caches_only, False


def all_answers_are_there() -> None:
    """From now on only summary, report and upload are left."""
    _Standing.is_complete = True


def interrupt_message(stopped: Stopped) -> str:
    """The line for standard error."""
    why = "interrupted" if stopped.signum == signal.SIGINT else f"stopped by {stopped.name}"
    return f"tango: {why}; {how_to_go_on()}"


def how_to_go_on() -> str:
    """What is kept and the command that continues."""
    run, arguments = _Standing.run, sys.argv[1:]
    if _Standing.text is not None:
        return _Standing.text
    if run is None:
        is_job = arguments[:1] and arguments[0] in ("evaluate", "sweep", "precompute", "ask")
        return "no clip had been started" if is_job else "run the command again to complete it"
    if _Standing.caches_only:
        return f"what is cached is kept, go on with: {shlex.join(['tango', *arguments])}"
    if _Standing.is_complete:
        return (
            f"all answers are in {run}; for the tables: tango report {shlex.quote(str(run))}, "
            f"for MLflow: tango log-run {shlex.quote(str(run))}"
        )
    given = [str(_Standing.recipe) if _is_recipe(a) and _Standing.recipe else a for a in arguments]
    command = shlex.join(["tango", *_without_resume(given), "--resume", str(run)])
    return f"finished clips are kept, go on with: {command}"


def _is_recipe(argument: str) -> bool:
    """Whether a word of the command line is the recipe's file."""
    return argument.endswith((".yaml", ".yml")) and not argument.startswith("-")


def _without_resume(arguments: Sequence[str]) -> list[str]:
    """The command line without `--resume` and `--steal`."""
    kept: list[str] = []
    skip = False
    for argument in arguments:
        if (
            not skip
            and argument != "--resume"
            and not argument.startswith(("--resume=", "--steal", "--continue"))
        ):
            kept.append(argument)
        skip = argument == "--resume" and not skip
    return kept
