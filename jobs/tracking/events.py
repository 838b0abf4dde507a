"""Events of a job in its run directory: `tracking/events.jsonl`, one JSON object per line.

Every attempt writes a `start` event, `sample` events with metrics, and an `end` event.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from pipeline.redaction import redacted, redacted_inside

logger = logging.getLogger(__name__)

EVENTS_FILE = "tracking/events.jsonl"
"""The file, relative to a run directory."""

Event = dict[str, Any]


class EventFile:
    """Append-only file of events with secrets redacted.

    If writing fails, one warning is logged and the job continues.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self._warned = self._begun = False

    def write(self, event: Mapping[str, Any]) -> None:
        """Append one event."""
        line = json.dumps(redacted_inside(event), default=lambda it: redacted(str(it))) + "\n"
        try:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            # A killed driver may have left an incomplete line; an empty one is skipped.
            line = line if self._begun or not self.path.is_file() else f"\n{line}"
            with self.path.open("a") as file:
                file.write(line)
            self._begun = True
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


def last_steps(run_dir: Path) -> dict[str, int]:
    """Metric -> largest step of its live samples."""
    steps: dict[str, int] = {}
    for event, _ in read_events(run_dir / EVENTS_FILE):
        for name in event.get("metrics", ()):
            steps[name] = max(steps.get(name, 0), int(event.get("step", 0)))
    return steps
