"""Which process works on an MLflow run, and whether it still lives."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from typing import Self

from pipeline import process

DRIVER_TAG, HEARTBEAT_TAG = "tango.driver", "tango.heartbeat"
DIRECTORY_TAG = "tango.run_dir"
SILENT_S = 900.0
"""Without a sign of life for so long, a driver on another machine counts as dead."""


@dataclass(frozen=True)
class Driver:
    """A process that drives a job.

    Attributes:
        host: Name of its machine, for people.
        machine: This start of that machine; process ids are compared only where it is the same.
        pid: Its process id.
        started: When the process started, in ticks of the kernel.
    """

    host: str
    machine: str
    pid: int
    started: str

    @classmethod
    def this(cls) -> Self:
        """The process that calls."""
        pid = process.pid()
        return cls(process.host(), process.machine(), pid, process.started(pid))

    @classmethod
    def read(cls, text: str) -> Self | None:
        """From the tag of a run; `None` if nobody can read it."""
        try:
            return cls(**json.loads(text))
        except (ValueError, TypeError):
            return None

    def to_tag(self) -> str:
        """For `read`."""
        return json.dumps(asdict(self))

    def is_here(self) -> bool:
        """Whether it ran on this machine, since its last start."""
        return bool(self.machine) and self.machine == process.machine()

    def is_alive(self, heartbeat: str, now: datetime) -> bool:
        """Whether it can still be at work.

        Args:
            heartbeat: Its last sign of life that the store has, in ISO format.
            now: The time, with its zone.
        """
        if self.is_here():
            # A store that was away has an old heartbeat of a living driver.
            return process.is_running(self.pid) and process.started(self.pid) == self.started
        seen = heartbeat_time(heartbeat)
        return seen is not None and (now - seen).total_seconds() <= SILENT_S


def heartbeat_time(text: str) -> datetime | None:
    """The time of a heartbeat; `None` if there was none."""
    try:
        found = datetime.fromisoformat(text)
    except ValueError:
        return None
    return found if found.tzinfo else found.replace(tzinfo=UTC)
