"""The question before a download starts."""

from __future__ import annotations

import sys

import typer
from rich.console import Console

from jobs.fetch.hub import FetchError


def agreed(question: str, console: Console, *, yes: bool) -> bool:
    """Whether to start.

    Args:
        question: What would be done, as a question.
        console: Where it is put.
        yes: Whether the command line has answered it.

    Raises:
        FetchError: If there is nobody to ask.
    """
    if yes:
        return True
    if not (sys.stdin.isatty() and console.is_terminal):
        raise FetchError("nothing was fetched: there is no terminal to ask on; add --yes")
    return bool(typer.confirm(question, default=False))
