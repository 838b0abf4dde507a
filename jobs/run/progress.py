"""What a person sees while a job runs: a live line on a terminal, a line now and then in a log."""

from __future__ import annotations

import logging
from types import TracebackType

from rich.console import Console
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    TextColumn,
    TimeElapsedColumn,
    TimeRemainingColumn,
)

from pipeline.clock import SYSTEM_CLOCK, Clock
from pipeline.rows import Row
from pipeline.stages.declarations import DECODE_VIDEO, has_failed

logger = logging.getLogger(__name__)

_LOG_EVERY_S = 15.0


class JobProgress:
    """Counts clips as they are finished and shows the count.

    Args:
        num_clips: Clips of this job.
        console: Where the live line goes; a console that is no terminal gets log lines instead.
        clock: For the time that is left.
    """

    def __init__(self, num_clips: int, console: Console, clock: Clock = SYSTEM_CLOCK) -> None:
        self._clock = clock
        self.num_clips = num_clips
        self.clips = self.cached = self.encoded = self.answered = self.failed = 0
        self._first = self._last_log = self._clock.monotonic()
        self._live = console.is_terminal
        self._bar = Progress(
            TextColumn("[bold]clips[/bold]"),
            BarColumn(bar_width=24),
            MofNCompleteColumn(),
            TextColumn("{task.description}"),
            TimeElapsedColumn(),
            TextColumn("left"),
            TimeRemainingColumn(),
            console=console,
            disable=not self._live,
            get_time=clock.monotonic,
        )
        self._task = self._bar.add_task("starting", total=num_clips)

    def __enter__(self) -> JobProgress:
        """Start the clock and the line."""
        self._bar.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """Leave the last state of the line on the screen."""
        self._bar.stop()

    def add(self, result: Row) -> None:
        """Take one finished clip (`rows.RESULT`)."""
        if self.clips == 0:
            self._first = self._clock.monotonic()  # workers and models have been started by now
        self.clips += 1
        self.cached += result["status"] == "ok" and result["num_misses"] == 0
        self.encoded += result["encode_ms"] is not None
        self.failed += has_failed(result)
        self.answered += len(result["answers"])
        self._bar.update(self._task, completed=self.clips, description=self._state())
        now = self._clock.monotonic()
        last = self.clips == self.num_clips
        if not self._live and (last or now - self._last_log > _LOG_EVERY_S):
            self._last_log = now
            left = "" if last or self.clips == 1 else f", {self._seconds_left(now):.0f} s left"
            logger.info("%d of %d clips, %s%s", self.clips, self.num_clips, self._state(), left)

    def _seconds_left(self, now: float) -> float:
        """By the rate since the first clip came out."""
        return (self.num_clips - self.clips) * (now - self._first) / (self.clips - 1)

    def _state(self) -> str:
        """The counts in words."""
        parts = [f"encoded {self.encoded}", f"cached {self.cached}", f"answers {self.answered}"]
        return " · ".join(
            [
                *parts,
                f"[red]failed {self.failed}[/red]"
                if self._live and self.failed
                else f"failed {self.failed}",
            ]
        )


def is_decoded(result: Row) -> bool:
    """Whether a clip's frames were read in this attempt."""
    return result["decode_video_ms"] is not None and result["status"] != DECODE_VIDEO.failure
