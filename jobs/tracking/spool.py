"""What a job says while it runs, on disk in its run directory until a tracking server has it.

`tracking/events.jsonl` is written by the driver, `tracking/system.jsonl` by the process that sends;
`tracking/sent.json` says per store how much of both it has.
"""

from __future__ import annotations

import hashlib
import json
import logging
import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from pipeline.redaction import redacted, redacted_inside

logger = logging.getLogger(__name__)

FOLDER = "tracking"
EVENTS, SYSTEM, SENT = "events.jsonl", "system.jsonl", "sent.json"
_MARKED = 4096  # bytes in front of an offset that tell a spool from another one
MAX_BYTES = 64 * 2**20

Event = dict[str, Any]


class Spool:
    """One file of events, one JSON object per line; only ever appended to.

    It holds no secret of a URL. A disk that fails, or a full spool, costs one warning and no job.

    Args:
        path: The file.
        max_bytes: Events that would make it larger are dropped, but the one that ends it.
    """

    def __init__(self, path: Path, max_bytes: int = MAX_BYTES) -> None:
        self.path = path
        self._max_bytes = max_bytes
        self._warned = False

    def write(self, event: Mapping[str, Any]) -> None:
        """Append one event; on disk when this returns, apart from the disk's own cache."""
        line = json.dumps(redacted_inside(event), default=lambda it: redacted(str(it))) + "\n"
        try:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            # A driver that was killed may have left half a line behind.
            torn = _ends_torn(self.path)
            size = self.path.stat().st_size if self.path.exists() else 0
            if size + len(line) > self._max_bytes and event.get("kind") != "end":
                raise OSError(f"it would be larger than {self._max_bytes} bytes")
            with self.path.open("a") as file:
                file.write(("\n" if torn else "") + line)
        except OSError as error:
            if not self._warned:
                logger.warning("%s: no more is recorded for MLflow: %s", self.path, error)
            self._warned = True


def read_events(path: Path, offset: int = 0) -> Iterator[tuple[Event, int]]:
    """Events behind an offset in bytes, each with the offset behind it; none if there is no file.

    A last line that is still being written is left for the next time; a torn one is skipped.
    """
    try:
        with path.open("rb") as file:
            file.seek(offset)
            for line in file:
                if not line.endswith(b"\n"):
                    return
                offset += len(line)
                event = _event(line)
                if event is not None:
                    yield event, offset
    except FileNotFoundError:
        return


@dataclass
class Sent:
    """What one store has of one run.

    Attributes:
        run: Id of the MLflow run; empty before it was made.
        offsets: File of events -> bytes of it that the store has.
        marks: File of events -> digest of the last of these bytes: the offset counts in a file that
            has them there, and in no other.
    """

    path: Path
    store: str
    run: str
    offsets: dict[str, int]
    marks: dict[str, str] = field(default_factory=dict)

    @classmethod
    def load(cls, run_dir: Path, tracking_uri: str) -> Sent:
        """Read what is known; a file that nobody can read means that nothing was sent."""
        path = run_dir / FOLDER / SENT
        store = store_key(tracking_uri)
        found = _stores(path).get(store, {})
        offsets, marks = (dict(found.get(name) or {}) for name in ("offsets", "marks"))
        return cls(path, store, str(found.get("run", "")), offsets, marks)

    def offset_in(self, path: Path) -> int:
        """Bytes of a file of events that the store has; 0 for another spool than the one sent.

        Of two drivers of a run in a store each has a spool of its own, and either may be kept.
        """
        offset = self.offsets.get(path.name, 0)
        mark = _mark(path, offset)
        return offset if mark and self.marks.get(path.name, mark) == mark else 0

    def sent_until(self, path: Path, offset: int) -> None:
        """Keep that the store has the first `offset` bytes of a file of events."""
        self.offsets[path.name], self.marks[path.name] = offset, _mark(path, offset)
        self.save()

    def save(self) -> None:
        """Put it in place whole."""
        known = {"run": self.run, "offsets": self.offsets, "marks": self.marks}
        stores = _stores(self.path) | {self.store: known}
        self.path.parent.mkdir(parents=True, exist_ok=True)
        aside = self.path.with_suffix(f".{os.getpid()}.tmp")
        aside.write_text(json.dumps(stores, indent=1))
        aside.replace(self.path)


def store_key(tracking_uri: str) -> str:
    """Names a store without its secrets, and tells two stores apart all the same."""
    digest = hashlib.sha256(tracking_uri.encode()).hexdigest()[:12]
    return f"{redacted(tracking_uri)} {digest}"


def has_events(run_dir: Path) -> bool:
    """Whether a run directory holds a spool."""
    return (run_dir / FOLDER / EVENTS).is_file()


def last_steps(run_dir: Path) -> dict[str, int]:
    """Metric -> the largest step of its samples while the job ran."""
    steps: dict[str, int] = {}
    for event, _ in read_events(run_dir / FOLDER / EVENTS):
        for name in event.get("metrics", ()):
            steps[name] = max(steps.get(name, 0), int(event.get("step", 0)))
    return steps


def _mark(path: Path, offset: int) -> str:
    """A digest of the last bytes in front of an offset; "" if the file does not reach it."""
    start = max(0, offset - _MARKED)
    try:
        with path.open("rb") as file:
            file.seek(start)
            found = file.read(offset - start)
    except FileNotFoundError:
        return ""
    return hashlib.sha256(found).hexdigest()[:12] if len(found) == offset - start else ""


def _ends_torn(path: Path) -> bool:
    """Whether the last line of a file has no end."""
    try:
        with path.open("rb") as file:
            file.seek(-1, os.SEEK_END)
            return file.read(1) != b"\n"
    except OSError:
        return False


def _event(line: bytes) -> Event | None:
    """One line; `None` for one that was cut off."""
    try:
        event = json.loads(line)
    except ValueError:
        return None
    return event if isinstance(event, dict) else None


def _stores(path: Path) -> dict[str, Any]:
    """All of `sent.json`."""
    try:
        stores = json.loads(path.read_text())
    except (OSError, ValueError):
        return {}
    return stores if isinstance(stores, dict) else {}
