"""The events of a run in an object store, kept there while its job is at work.

Objects cannot be appended to, so the whole file is written again when it has grown by a tenth.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from jobs.tracking.events import EVENTS, FILES, FOLDER
from pipeline.runtime.clock import SYSTEM_CLOCK, Clock, Repeated
from pipeline.storage.copies import local_copy
from pipeline.storage.objects import ObjectStore, Patience
from pipeline.storage.urls import Place, Url

logger = logging.getLogger(__name__)

_SAMPLES_PER_COPY = 3
_GROWTH = 1.1
_LAST_COPY_S = 5.0
# A copy that fails is made up for by the next one.
_PATIENCE = Patience(tries=2, deadline_s=30.0)


class StoredEvents:
    """Fetches the events of earlier attempts, and copies the file to the store while it grows.

    A store that fails costs one warning and no job. Only the driver that holds the lease may start.

    Args:
        run_dir: Of the run.
        folder: Local directory that stands for it.
        every_s: Seconds between two samples of the job.
        clock: Calls at intervals.

    Attributes:
        is_whole: Whether the events of earlier attempts are all here, so that the file may replace
            the one in the store.
    """

    def __init__(
        self, run_dir: Url, folder: Path, every_s: float, clock: Clock = SYSTEM_CLOCK
    ) -> None:
        self._run_dir, self._folder = run_dir, folder
        self._every_s, self._clock = _SAMPLES_PER_COPY * every_s, clock
        self._store = ObjectStore(run_dir.scheme, _PATIENCE)
        self._lock = threading.Lock()
        self._ticker: Repeated | None = None
        self._copied = 0
        self.is_whole = self._warned = self._closed = False

    def start(self) -> None:
        """Fetch the events of earlier attempts, and copy from now on."""
        start = len(self._run_dir.path) + 1
        try:
            entries = self._store.tree((self._run_dir / FOLDER).path)
            pairs = [(entry.path, self._folder / entry.path[start:]) for entry in entries]
            for _, target in pairs:
                target.parent.mkdir(parents=True, exist_ok=True)
            self._store.download_all(pairs)
            append_parts(self._folder)
            self.is_whole = True
        except OSError as error:
            self._warn(error)
        self._ticker = self._clock.repeat(self.copy, self._every_s, "tango-stored-events")
        self._ticker.start()

    def copy(self, growth: float = _GROWTH) -> None:
        """Write the file to the store if it is larger by a factor than what is there."""
        path = self._folder / FOLDER / EVENTS
        with self._lock:
            size = path.stat().st_size if path.is_file() else 0
            if self._closed or not self.is_whole or size <= growth * self._copied:
                return
            try:
                self._store.write((self._run_dir / FOLDER / EVENTS).path, path.read_bytes())
                self._copied = size
            except OSError as error:
                self._warn(error)

    def close(self, *, last_copy: bool) -> None:
        """Copy no more, and what is new once more if the job ended badly, within seconds."""
        if self._ticker is None:  # another driver has the run
            return
        self._ticker.stop(wait=False)
        if last_copy:
            thread = threading.Thread(target=self.copy, args=(1.0,), daemon=True)
            thread.start()
            thread.join(_LAST_COPY_S)
        self._closed = True

    def _warn(self, error: OSError) -> None:
        """Once."""
        if not self._warned:
            logger.warning("the events for MLflow are not copied to the store: %s", error)
        self._warned = True


def append_parts(run_dir: Path) -> None:
    """Append the parts of releases before 0.3 in a local copy of a run to the files they belong to.

    Those wrote `tracking/parts/<attempt>/events.jsonl/000000` while a job was at work.
    """
    for part in sorted((run_dir / FOLDER / "parts").glob("*/*/*")):
        whole, events = run_dir / FOLDER / part.parent.name, part.read_bytes()
        if not whole.is_file() or events not in whole.read_bytes():  # appended by a later attempt
            with whole.open("ab") as file:
                file.write(events)
        part.unlink()


def is_events_file(name: str) -> bool:
    """Whether a file of a run holds events, by its path in the run."""
    folder, _, rest = name.partition("/")
    return folder == FOLDER and (rest in FILES or rest.startswith("parts/"))


@contextmanager
def run_with_events(where: Place) -> Iterator[Path]:
    """The files of a run on this machine, with all its events; nothing is sent back.

    Raises:
        OSError: If the store does not answer.
    """
    with local_copy(where, sent=lambda name: False) as folder:
        if isinstance(where, Url):
            append_parts(folder)
        yield folder
