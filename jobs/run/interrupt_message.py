"""Message printed when a command is interrupted: what is kept, and how to continue.

Imports only the standard library, because a signal may arrive before other modules are loaded.
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


class _Progress:
    """Progress of the command of this process."""

    run: Place | None = None
    recipe: Place | None = None
    is_complete = False
    caches_only = False
    text: str | None = None


def leaves_behind(text: str) -> None:
    """Use `text` as the message from now on, for commands without a local run."""
    _Progress.text = text


def works_on(run: Place, *, recipe: Place | None = None, caches_only: bool = False) -> None:
    """Record the run that the command works on, which the message tells how to continue.

    Args:
        run: Run directory.
        recipe: Recipe that continues only this run, if the command has several runs.
        caches_only: Whether the command only fills caches; then repeating it continues it.
    """
    _Progress.run, _Progress.recipe = run, recipe
    _Progress.caches_only, _Progress.is_complete = caches_only, False


def all_answers_are_there() -> None:
    """Record that all answers are written; only summary, report and upload remain."""
    _Progress.is_complete = True


def interrupt_message(stopped: Stopped) -> str:
    """The message for standard error."""
    why = "interrupted" if stopped.signum == signal.SIGINT else f"stopped by {stopped.name}"
    return f"tango: {why}; {how_to_go_on()}"


def how_to_go_on() -> str:
    """Describe what is kept, and the command that continues."""
    run, arguments = _Progress.run, sys.argv[1:]
    if _Progress.text is not None:
        return _Progress.text
    if run is None:
        is_job = arguments[:1] and arguments[0] in ("evaluate", "sweep", "precompute", "ask")
        return "no clip was started" if is_job else "run the command again to complete it"
    if _Progress.caches_only:
        return f"cached clips are kept, continue with: {shlex.join(['tango', *arguments])}"
    if _Progress.is_complete:
        return (
            f"all answers are in {run}; for the tables: tango report {shlex.quote(str(run))}, "
            f"for MLflow: tango log-run {shlex.quote(str(run))}"
        )
    given = [str(_Progress.recipe) if _is_recipe(a) and _Progress.recipe else a for a in arguments]
    command = shlex.join(["tango", *_without_resume(given), "--resume", str(run)])
    return f"finished clips are kept, continue with: {command}"


def _is_recipe(argument: str) -> bool:
    """Whether a command-line argument is a recipe file."""
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
