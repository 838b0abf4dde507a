"""Progress of a training: bars on a terminal, lines in a log."""

from __future__ import annotations

import logging
import time
from collections.abc import Iterator
from contextlib import contextmanager

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

from jobs.training.loop import Metrics, ReportProgress

logger = logging.getLogger(__name__)

_LOG_EVERY_S = 30.0


@contextmanager
def show_progress(console: Console) -> Iterator[ReportProgress]:
    """Show a progress bar per stage on a terminal; elsewhere log a line every 30 seconds.

    Args:
        console: Where the bars are shown.

    Yields:
        The function that the stages call with their progress.
    """
    bars = Progress(
        TextColumn("[bold]{task.fields[stage]:<9}[/bold]"),
        BarColumn(bar_width=24),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
        TextColumn("left"),
        TimeRemainingColumn(),
        TextColumn("{task.fields[metrics]}"),
        console=console,
        disable=not console.is_terminal,
    )
    tasks: dict[str, TaskID] = {}
    last_log = 0.0

    def report(stage: str, step: int, steps: int, metrics: Metrics) -> None:
        nonlocal last_log
        text = _text(metrics)
        if stage not in tasks:
            tasks[stage] = bars.add_task("", total=steps, stage=stage, metrics="")
        bars.update(tasks[stage], completed=step, metrics=text)
        now = time.monotonic()
        if not console.is_terminal and (step == steps or now - last_log > _LOG_EVERY_S):
            last_log = now
            logger.info("%s: step %d of %d, %s", stage, step, steps, text)

    with bars:
        yield report


def _text(metrics: Metrics) -> str:
    """Metrics in one line, without the losses of single heads."""
    return " ".join(
        f"{name.split('/')[-1]} {value:.2f}"
        for name, value in metrics.items()
        if not name.startswith("loss/")
    )
