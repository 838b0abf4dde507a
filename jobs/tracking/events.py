"""Events of a job in its run directory: `tracking/events.jsonl`, one JSON object per line.

Every attempt writes a `start` event, `sample` events with metrics, and an `end` event.
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
    """Append-only file of events with secrets redacted.

    If writing fails, one warning is logged and the job continues.
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
                if size:  # a killed driver may have left an incomplete line
                    file.seek(-1, os.SEEK_END)
                    line = line if file.read() == b"\n" else f"\n{line}"
                file.write(line.encode())
        except OSError as error:
            if not self._warned:
                logger.warning("%s: cannot record events for MLflow: %s", self.path, error)
            self._warned = True


def read_events(path: Path, offset: int = 0) -> Iterator[tuple[Event, int]]:
    """Yield the events after a byte offset, each with the offset of the next one.

    An incomplete last line is not read yet; other invalid lines are skipped.
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
    """Whether a path relative to a run directory is its events file."""
    return name == f"{FOLDER}/{EVENTS}"


def last_steps(run_dir: Path) -> dict[str, int]:
    """Metric -> largest step of its live samples."""
    steps: dict[str, int] = {}
    for event, _ in read_events(run_dir / FOLDER / EVENTS):
        for name in event.get("metrics", ()):
            steps[name] = max(steps.get(name, 0), int(event.get("step", 0)))
    return steps
