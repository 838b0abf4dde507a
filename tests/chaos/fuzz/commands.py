"""What a user is told: the console script's rules, applied to a command or to a function of one."""

from __future__ import annotations

import contextlib
import io
import logging
import sys
import traceback
from collections.abc import Callable
from typing import TypeVar

from jobs import exit_codes
from jobs.cli import main as cli
from pipeline.errors import WorkerError
from tango_core.errors import UserError

T = TypeVar("T")
_MOST_CHARACTERS = 4_000


class WrongEndError(AssertionError):
    """A traceback, no reason, or a page of text where a line belongs."""


class RefusedError(Exception):
    """The command ends with exit code 2 and this line."""


def told(function: Callable[[], T]) -> T:
    """Call what a command calls.

    Raises:
        RefusedError: For an error that the console script shows in one line.
        WrongEndError: For one that it shows as a traceback, or that says too little or too much.
    """
    logging.disable(logging.CRITICAL)
    try:
        return function()
    except (UserError, OSError, WorkerError) as error:
        line = " ".join(str(error).split())
        if len(line) < 8 or len(line) > _MOST_CHARACTERS:
            raise WrongEndError(f"{type(error).__name__} says {line[:300]!r}") from error
        raise RefusedError(line) from error
    except Exception as error:
        raise WrongEndError(_where(error)) from error
    finally:
        logging.disable(logging.NOTSET)


def tango(*arguments: object) -> tuple[int, str]:
    """Run the console script in this process: its exit code, and what it printed.

    Raises:
        WrongEndError: For a traceback, or an exit code that does not exist.
        RefusedError: For exit code 2.
    """
    out, err = io.StringIO(), io.StringIO()
    given, sys.argv = sys.argv, ["tango", *map(str, arguments)]
    try:
        with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
            code = cli._run()
    except Exception as error:
        raise WrongEndError(_where(error)) from error
    finally:
        sys.argv = given
    if "Traceback" in err.getvalue():
        raise WrongEndError(" ".join(err.getvalue().split())[-900:])
    last = (err.getvalue().strip().splitlines() or [""])[-1]
    if code == exit_codes.MISTAKE:
        if not last.startswith("tango: ") or len(last) > _MOST_CHARACTERS:
            raise WrongEndError(f"exit code 2, and the last line is {last[:300]!r}")
        raise RefusedError(last)
    if code not in (exit_codes.OK, exit_codes.FAILED):
        raise WrongEndError(f"exit code {code}")
    return code, out.getvalue()


def _where(error: BaseException) -> str:
    """Kind and text of an error, and the innermost places of this project that it came through."""
    frames = traceback.extract_tb(error.__traceback__)
    ours = [
        f for f in frames if any(room in f.filename for room in ("jobs/", "pipeline/", "tango_"))
    ]
    places = [f"{'/'.join(f.filename.split('/')[-3:])}:{f.lineno}" for f in ours[-3:]]
    return f"{type(error).__name__}: {' '.join(str(error).split())[:300]} ({' > '.join(places)})"
