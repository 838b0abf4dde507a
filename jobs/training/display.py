"""What a person sees while the embedded model is trained."""

from __future__ import annotations

import logging
import time
from types import TracebackType

from rich.console import Console
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    TaskID,
    TextColumn,
    TimeElapsedColumn,
    TimeRemainingColumn,
)

from jobs.training.stage import Figures

logger = logging.getLogger(__name__)

_LOG_EVERY_S = 30.0


class StageDisplay:
    """A bar per stage on a terminal, a line now and then in a log.

    Args:
        console: Where the bars go.
    """

    def __init__(self, console: Console) -> None:
        self._live = console.is_terminal
        self._bar = Progress(
            TextColumn("[bold]{task.fields[stage]:<9}[/bold]"),
            BarColumn(bar_width=24),
            MofNCompleteColumn(),
            TimeElapsedColumn(),
            TextColumn("left"),
            TimeRemainingColumn(),
            TextColumn("{task.fields[figures]}"),
            console=console,
            disable=not self._live,
        )
        self._tasks: dict[str, TaskID] = {}
        self._last_log = 0.0

    def __enter__(self) -> StageDisplay:
        """Start the bars."""
        self._bar.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """Leave the bars as they are."""
        self._bar.stop()

    def report(self, stage: str, step: int, steps: int, figures: Figures) -> None:
        """Show how far a stage is, and what it has reached."""
        text = _text(figures)
        if stage not in self._tasks:
            self._tasks[stage] = self._bar.add_task("", total=steps, stage=stage, figures="")
        self._bar.update(self._tasks[stage], completed=step, figures=text)
        now = time.monotonic()
        if not self._live and (step == steps or now - self._last_log > _LOG_EVERY_S):
            self._last_log = now
            logger.info("%s: step %d of %d, %s", stage, step, steps, text)


def _text(figures: Figures) -> str:
    """Figures in one line, losses of read-outs left out."""
    return " ".join(
        f"{name.split('/')[-1]} {value:.2f}"
        for name, value in figures.items()
        if not name.startswith("loss/")
    )
