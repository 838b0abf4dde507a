"""What a person sees while files come: a bar on a terminal, nothing in a log."""

from __future__ import annotations

import threading
from types import TracebackType

from rich.console import Console
from rich.progress import (
    BarColumn,
    DownloadColumn,
    Progress,
    TextColumn,
    TimeRemainingColumn,
    TransferSpeedColumn,
)


class Meter:
    """Counts bytes, from several threads.

    Args:
        console: A terminal shows a bar.
        total: Bytes in all.
        here: Bytes that were here before.
        quiet: Show nothing.
    """

    def __init__(self, console: Console, total: int, here: int, *, quiet: bool = False) -> None:
        self._lock = threading.Lock()
        self.received = 0
        self._bar = Progress(
            TextColumn("{task.description}"),
            BarColumn(bar_width=30),
            DownloadColumn(),
            TransferSpeedColumn(),
            TimeRemainingColumn(),
            console=console,
            disable=quiet or not console.is_terminal,
            transient=True,
        )
        self._task = self._bar.add_task("fetching", total=total, completed=here)

    def __enter__(self) -> Meter:
        self._bar.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._bar.stop()

    def add(self, count: int) -> None:
        """So many bytes came; less than 0 if some were thrown away."""
        with self._lock:
            self.received += max(count, 0)
            self._bar.advance(self._task, count)
