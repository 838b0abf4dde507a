"""Run the commands of an app, and report a wrong command line in one line."""

from __future__ import annotations

import sys
from typing import Any

import typer
from pydantic import ValidationError
from typer.main import get_command

from jobs import exit_codes
from tango_core.errors import InputError

# Click's base class of usage errors; typer contains a private copy of click.
_USAGE_ERROR: type[Exception] = typer.BadParameter.__bases__[0]


class CommandLineError(InputError):
    """An unknown command or option, a missing one, or a value that is not allowed."""


def run_app(app: typer.Typer) -> int:
    """Parse `sys.argv` and run the command.

    Returns:
        The command's exit code; 2 if only the help was shown because no command was given; 1 if a
        prompt was aborted; 130 for Ctrl-C.

    Raises:
        CommandLineError: For a wrong command line; the one-line message names the option or value
            and the help to read.
    """
    try:
        return int(get_command(app)(prog_name=app.info.name, standalone_mode=False) or 0)
    except typer.Abort:
        return exit_codes.FAILED
    except _USAGE_ERROR as error:
        # The class is not public; typer also compares its name.
        if type(error).__name__ == "NoArgsIsHelpError":
            if text := _message(error):
                print(text, file=sys.stderr)
            return exit_codes.MISTAKE
        text = " ".join(_message(error).split()).rstrip(".")
        if isinstance(error.__cause__, ValidationError):  # newer versions of typer
            text += f", got {error.__cause__.errors()[0]['input']!r}"
        context = getattr(error, "ctx", None)
        where = f"; see `{context.command_path} --help`" if context else ""
        raise CommandLineError(f"{text[:1].lower()}{text[1:]}{where}") from error


def _message(error: Any) -> str:
    return str(error.format_message())
