"""One line about one thing, and how it comes about without ever failing."""

from __future__ import annotations

import logging
import warnings
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from rich.console import Console
from rich.table import Table
from rich.text import Text

from pipeline.stages.child import Child

Mark = Literal["ok", "note", "problem"]

_STYLES: dict[Mark, str] = {"ok": "green", "note": "yellow", "problem": "bold red"}
_MARK_WIDTH, _SUBJECT_WIDTH = 7, 14


@dataclass(frozen=True)
class Remark:
    """What was found.

    Attributes:
        mark: `"ok"`; `"note"`: nothing will fail, but somebody may want to know; `"problem"`: a job
            will fail, or not do all that it is asked to.
        text: One line; for a problem it ends in what to do.
    """

    mark: Mark
    text: str


@dataclass(frozen=True)
class Check:
    """Something to look at.

    Attributes:
        subject: One or two words for it.
        look: Function of an importable module.
        args: Its arguments, picklable.
        limit_s: Seconds it may take.
    """

    subject: str
    look: Callable[..., Remark]
    args: tuple[Any, ...] = ()
    limit_s: float = 20.0


def ok(text: str) -> Remark:
    """Everything is as it should be."""
    return Remark("ok", text)


def note(text: str) -> Remark:
    """Worth knowing."""
    return Remark("note", text)


def problem(text: str) -> Remark:
    """Something to put right first."""
    return Remark("problem", text)


def examine(checks: Sequence[Check]) -> Iterator[tuple[str, Remark]]:
    """Run checks one by one in a child process; yields (subject, remark), and never raises.

    A check that raises, runs out of time or takes its process down is a problem with that as its
    text, and the next one starts in a new process.
    """
    child = Child()
    try:
        for check in checks:
            yield check.subject, _look(child, check)
    finally:
        child.close()


def _look(child: Child, check: Check) -> Remark:
    """One check, whatever comes of it."""
    try:
        return child.call(
            _quietly,
            check.look,
            check.args,
            timeout_s=check.limit_s,
            about=check.subject,
            what="check",
        )
    except (ValueError, OSError) as error:
        return problem(_one_line(str(error) or type(error).__name__))
    # Whatever is broken here is what the user wants to know: no surprise may end the list.
    except Exception as error:
        return problem(_one_line(f"{type(error).__name__}: {error}"))


def _quietly(look: Callable[..., Remark], args: tuple[Any, ...]) -> Remark:
    """Run in the child: what libraries want to log does not belong between the lines."""
    logging.disable(logging.CRITICAL)
    warnings.simplefilter("ignore")
    return look(*args)


def print_remark(subject: str, remark: Remark, console: Console) -> None:
    """One line; on a terminal it is wrapped beside its mark and subject, elsewhere never."""
    text = _one_line(remark.text)
    if not console.is_terminal:
        line = f"{remark.mark:<{_MARK_WIDTH}} {subject:<{_SUBJECT_WIDTH}} {text}"
        console.print(line, markup=False, highlight=False, soft_wrap=True)
        return
    row = Table.grid(padding=(0, 1))
    row.add_column(width=_MARK_WIDTH)
    row.add_column(width=_SUBJECT_WIDTH)
    row.add_column(overflow="fold")
    row.add_row(Text(remark.mark, style=_STYLES[remark.mark]), subject, Text(text))
    console.print(row)


def _one_line(text: str) -> str:
    """Without line breaks."""
    return " ".join(text.split())
