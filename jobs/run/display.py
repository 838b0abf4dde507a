"""How a command shows its jobs: to a person, quietly, or as JSON for a script."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import TextIO

from rich.console import Console


@dataclass(frozen=True)
class Display:
    """Where a job's output goes.

    Attributes:
        console: For the table and the places of the results.
        progress: For the live lines; one that is quiet shows none, and no counts in the log.
        events: For JSON events; `None` for none.
    """

    console: Console
    progress: Console
    events: TextIO | None = None

    @classmethod
    def on(cls, console: Console, *, quiet: bool = False, events: TextIO | None = None) -> Display:
        """The display of one console.

        Args:
            console: For everything.
            quiet: Without progress.
            events: Receives one JSON object per line; then the console should not be its terminal.
        """
        silent = quiet or events is not None
        return cls(console, Console(quiet=True) if silent else console, events)

    @property
    def table_width(self) -> int | None:
        """Columns that a table may take; `None` for any number."""
        from jobs.report.tables.cells import table_width

        return table_width(self.console.is_terminal, self.console.width)

    @property
    def say(self) -> Callable[..., None]:
        """Prints a line as it is."""
        return partial(self.console.print, markup=False, highlight=False, soft_wrap=True)
