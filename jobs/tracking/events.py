"""The events of a job in its run directory: `tracking/events.jsonl`, one JSON object per line.

A job starts (`start`), has numbers (`sample`) and ends (`end`), once per attempt.
"""

from __future__ import annotations

import json
import logging
import os
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from pipeline.redaction import redacted, redacted_inside

logger = logging.getLogger(__name__)

FOLDER = "tracking"
EVENTS = "events.jsonl"

Event = dict[str, Any]


class EventFile:
    """A file of events that is only appended to, and that holds no secrets.

    A disk that fails costs one warning and no job.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self._warned = False

    def write(self, event: Mapping[str, Any]) -> None:
        """Append one event."""
        line = json.dumps(redacted_inside(event), default=lambda it: redacted(str(it))) + "\n"
        try:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            with self.path.open("a+b") as file:
                size = file.seek(0, os.SEEK_END)
                if size:  # a driver that was killed may have left half a line
                    file.seek(-1, os.SEEK_END)
                    line = line if file.read() == b"\n" else f"\n{line}"
                file.write(line.encode())
        except OSError as error:
            if not self._warned:
                logger.warning("%s: no more is recorded for MLflow: %s", self.path, error)
            self._warned = True


def read_events(path: Path, offset: int = 0) -> Iterator[tuple[Event, int]]:
    """Events behind an offset in bytes, each with the offset behind it; none if there is no file.

    A last line that is still being written is left for the next time; a torn one is skipped.
    """
    if not path.is_file():
        return
    with path.open("rb") as file:
        file.seek(offset)
        for line in file:
            if not line.endswith(b"\n"):
                return
            offset += len(line)
            try:
                event = json.loads(line)
            except ValueError:
                continue
            if isinstance(event, dict):
                yield event, offset


def has_events(run_dir: Path) -> bool:
    """Whether a run directory holds the events of a job."""
    return (run_dir / FOLDER / EVENTS).is_file()


def is_events_file(name: str) -> bool:
    """Whether a file of a run holds events, by its path in the run."""
    return name == f"{FOLDER}/{EVENTS}"


def last_steps(run_dir: Path) -> dict[str, int]:
    """Metric -> the largest step of its samples while the job ran."""
    steps: dict[str, int] = {}
    for event, _ in read_events(run_dir / FOLDER / EVENTS):
        for name in event.get("metrics", ()):
            steps[name] = max(steps.get(name, 0), int(event.get("step", 0)))
    return steps
