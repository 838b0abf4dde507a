"""One check, its result, and how checks run without ending the command."""

from __future__ import annotations

import logging
import warnings
from collections.abc import Callable, Generator, Iterable
from dataclasses import dataclass
from typing import Any, Literal

from rich.console import Console
from rich.text import Text

from jobs.extras import how_to_install
from pipeline.runtime.child import Child

Status = Literal["ok", "note", "problem"]

_STYLES: dict[Status, str] = {"ok": "green", "note": "yellow", "problem": "bold red"}


@dataclass(frozen=True)
class CheckResult:
    """Result of a check.

    Attributes:
        status: `"ok"`; `"note"`: no job fails because of it, but the user may want to know;
            `"problem"`: a job will fail, or will not do all that it is asked to.
        text: One line; for a problem it ends in what to do.
    """

    status: Status
    text: str


@dataclass(frozen=True)
class Check:
    """A function to run and the name of what it checks.

    Attributes:
        subject: One or two words, printed in front of the result.
        function: Function of an importable module.
        args: Its arguments, picklable.
        timeout_s: Seconds after which the check is stopped.
    """

    subject: str
    function: Callable[..., CheckResult]
    args: tuple[Any, ...] = ()
    timeout_s: float = 60.0


def ok(text: str) -> CheckResult:
    """A result with status `"ok"`."""
    return CheckResult("ok", text)


def note(text: str) -> CheckResult:
    """A result with status `"note"`."""
    return CheckResult("note", text)


def problem(text: str) -> CheckResult:
    """A result with status `"problem"`."""
    return CheckResult("problem", text)


def run_checks(checks: Iterable[Check]) -> Generator[tuple[str, CheckResult]]:
    """Run checks one by one in a child process; yields (subject, result), and never raises.

    A check that raises, takes too long or ends its process is a problem with that as its text, and
    the next check starts in a new process.
    """
    child = Child()
    try:
        for check in checks:
            yield check.subject, _run(child, check)
    finally:
        child.close()


def _run(child: Child, check: Check) -> CheckResult:
    """Run one check; an error becomes a problem."""
    try:
        return child.call(
            _without_log,
            check.function,
            check.args,
            timeout_s=check.timeout_s,
            about=check.subject,
            what="check",
        )
    # Any error is what the user wants to know, and the remaining checks must still run.
    except Exception as error:
        named = f"{type(error).__name__}: {error}"
        if isinstance(error, ModuleNotFoundError):
            named = how_to_install(error) or named
        elif isinstance(error, (ValueError, OSError)):
            named = str(error) or type(error).__name__
        return problem(_one_line(named))


def _without_log(function: Callable[..., CheckResult], args: tuple[Any, ...]) -> CheckResult:
    """Run a check in the child; log messages of libraries would mix with the results."""
    logging.disable(logging.CRITICAL)
    warnings.simplefilter("ignore")
    return function(*args)


def print_result(subject: str, result: CheckResult, console: Console) -> None:
    """Print one result as a line."""
    line = Text.assemble((f"{result.status:<8}", _STYLES[result.status]), f"{subject:<15}")
    console.print(line + _one_line(result.text), highlight=False, soft_wrap=True)


def _one_line(text: str) -> str:
    """Replace line breaks and repeated spaces by one space."""
    return " ".join(text.split())
