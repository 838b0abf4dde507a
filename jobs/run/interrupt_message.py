"""Message printed when a command is interrupted: what is kept, and how to continue.

Imports only the standard library, because a signal may arrive before other modules are loaded.
"""

from __future__ import annotations

import re
import shlex
import signal
import sys
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pipeline.runtime.stopping import Stopped
    from pipeline.storage.urls import Place

_text: str | None = None


def leaves_behind(text: str) -> None:
    """Use `text` as the message from now on."""
    global _text
    _text = text


def works_on(run: Place, *, recipe: Place | None = None, caches_only: bool = False) -> None:
    """Use the command that continues a run as the message.

    Args:
        run: Run directory.
        recipe: Recipe that continues only this run, if the command has several runs.
        caches_only: Whether the command only fills caches; then repeating it continues it.
    """
    words = sys.argv[1:]
    if caches_only:
        command = shlex.join(["tango", *words])
        return leaves_behind(f"cached clips are kept, continue with: {command}")
    if "--resume" in words:
        at = words.index("--resume")
        del words[at : at + 2]
    words = [one for one in words if not one.startswith(("--resume=", "--steal", "--continue"))]
    if recipe is not None:
        words = [str(recipe) if re.search(r"^[^-].*\.ya?ml$", one) else one for one in words]
    command = shlex.join(["tango", *words, "--resume", str(run)])
    return leaves_behind(f"finished clips are kept, continue with: {command}")


def all_answers_are_in(run: Place) -> None:
    """Use the commands for summary, report and upload of a run as the message."""
    name = shlex.quote(str(run))
    leaves_behind(
        f"all answers are in {run}; for the tables: tango report {name}, for MLflow: tango log-run "
        f"{name}"
    )


def interrupt_message(stopped: Stopped) -> str:
    """The message for standard error."""
    why = "interrupted" if stopped.signum == signal.SIGINT else f"stopped by {stopped.name}"
    return f"tango: {why}; {how_to_go_on()}"


def how_to_go_on() -> str:
    """Describe what is kept, and the command that continues."""
    if _text is not None:
        return _text
    is_job = sys.argv[1:2] and sys.argv[1] in ("evaluate", "sweep", "precompute", "ask")
    return "no clip was started" if is_job else "run the command again to complete it"
