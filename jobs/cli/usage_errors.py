"""Run a command and report usage errors in one line.

Typer alone prints a usage line, a hint and a framed text, which neither reads like our own errors
nor fits into a log.
"""

from __future__ import annotations

import difflib
import os
import sys
from typing import Any

import typer
from pydantic import ValidationError
from rich.markup import escape
from typer.main import get_command

from jobs import exit_codes
from tango_core.errors import InputError

# Click's class of all mistakes on a command line: typer has its own copy of click, not in public.
_USAGE_ERROR: type[Exception] = typer.BadParameter.__bases__[0]


class CommandLineError(InputError):
    """An unknown command or option, a missing one, or a value that is not allowed."""


def run_app(app: typer.Typer) -> int:
    """Read `sys.argv` and run the command that it names.

    Returns:
        Exit code: what the command left with; 2 where only the help was shown because nothing was
        asked for; 1 if the input ended early; 130 for Ctrl-C.

    Raises:
        CommandLineError: In one line that names the flag or value and says where to look.
    """
    try:
        command = get_command(app)
        show_brackets(command)
        return int(command(prog_name=app.info.name, standalone_mode=False) or 0)
    except typer.Abort:
        return exit_codes.FAILED
    except _USAGE_ERROR as error:
        # The class is in no public module; typer itself goes by the name.
        if type(error).__name__ == "NoArgsIsHelpError":
            _print_plain_help(error)
            return exit_codes.MISTAKE
        raise CommandLineError(explain(error)) from error


def show_brackets(command: Any) -> None:
    """Let the help of a command and of those below it show `[default: main]` as it is written.

    Rich would take it for a tag of its markup and leave it out.

    Args:
        command: Made by typer, which shows help by Rich where `rich_markup_mode` says so.
    """
    if getattr(command, "rich_markup_mode", None) != "rich":
        return
    for one in (command, *command.params):
        if getattr(one, "help", None):
            one.help = escape(one.help)
    for below in getattr(command, "commands", {}).values():
        show_brackets(below)


def explain(error: Any) -> str:
    """A usage error of click or typer as one line, in the style of our own.

    Args:
        error: Has `format_message()` and, where click knows them, `ctx` and `possibilities`.
    """
    possible = _near(error)
    # The formatted message would list the possibilities; the plain one lacks the parameter's name.
    raw = error.message if hasattr(error, "possibilities") else error.format_message()
    text = (
        " ".join(raw.split())
        .replace("Value error, ", "")
        .replace(": Input ", ": input ")
        .rstrip(".")
    )
    text = text[:1].lower() + text[1:]
    cause = error.__cause__
    if isinstance(cause, ValidationError):
        value = repr(cause.errors()[0]["input"])
        text += "" if value in text else f", got {value}"
    if hasattr(error, "option_name") and (path := _path_with_dash()):
        return f"{text}; a path that begins with a dash is written ./{path}"
    if possible:
        return f"{text}; did you mean {' or '.join(possible)}?"
    for what_to_do in ("Did you mean ", "Choose from: "):
        if f". {what_to_do}" in text:
            return text.replace(f". {what_to_do}", f"; {what_to_do.lower()}")
    return f"{text}; {_where_to_look(error, text)}"


def _path_with_dash() -> str | None:
    """An argument that looks like an option and is a file or a directory."""
    return next((one for one in sys.argv[1:] if one[:1] == "-" and os.path.lexists(one)), None)


def _near(error: Any) -> list[str]:
    """Of the options that click finds near, those that are so without their dashes, too."""
    found = sorted(getattr(error, "possibilities", None) or ())
    wanted = error.option_name.lstrip("-") if found else ""
    return [name for name in found if difflib.get_close_matches(wanted, [name.lstrip("-")])]


def _where_to_look(error: Any, text: str) -> str:
    """The commands there are, or the help of the one that was given."""
    context = getattr(error, "ctx", None)
    if context is None:
        return "add --help to see what is allowed"
    if text.startswith("no such command"):
        return f"choose one of: {', '.join(context.command.commands)}"
    return f"see `{context.command_path} --help`"


def _print_plain_help(error: Any) -> None:
    """Print the help if it is in the error: with rich it is on the screen already."""
    text = error.format_message()
    if text:
        print(text, file=sys.stderr)
