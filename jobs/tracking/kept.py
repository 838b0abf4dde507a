"""The spool of a run in a store, kept there while the job is at work.

A driver that is killed leaves nothing on its machine that another one finds. So what is new goes to
parts (`parts.py`). A job that ends well puts whole files in their place, and so does the next
attempt.
"""

from __future__ import annotations

import logging
import threading
import uuid
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

from jobs.tracking.parts import Parts, forget, is_spool, put_together
from jobs.tracking.spool import EVENTS, FOLDER, SENT, SYSTEM
from pipeline.background import LastingThread
from pipeline.clock import SYSTEM_CLOCK, Clock, Repeated
from pipeline.remote.objects import ObjectStore
from pipeline.remote.retries import Patience
from pipeline.remote.urls import Url

logger = logging.getLogger(__name__)

_SAMPLES_PER_SEND = 3
_MOST_AT_FULL_RATE = 1_000
"""Sends after which their interval grows with the job: a week of a job is about 3,000 of them."""
_LAST_SEND_S = 5.0
# Whatever fails is sent with the next part.
_PATIENCE = Patience(tries=2, deadline_s=30.0)


class KeptSpool:
    """Brings the spool of earlier attempts here, and copies what is added to it to the store.

    A store that fails costs one warning and no job. Only the driver that holds the lease may start.

    Args:
        run_dir: Of the run.
        desk: Local directory whose `tracking/` is the spool.
        every_s: Seconds between two samples of the job.
        clock: Calls at intervals.

    Attributes:
        is_whole: Whether what earlier attempts said is all here, so that the files here may take
            the place of those in the store.
    """

    def __init__(
        self, run_dir: Url, desk: Path, every_s: float, clock: Clock = SYSTEM_CLOCK
    ) -> None:
        self._run_dir, self._desk, self._clock = run_dir, desk, clock
        self._every_s = _SAMPLES_PER_SEND * every_s
        self._store = ObjectStore(run_dir.scheme, _PATIENCE)
        self._lock = threading.Lock()
        self._ticker: Repeated | None = None
        self._begun = self._sent_at = clock.monotonic()
        self._earlier: list[str] = []
        self._parts: list[Parts] = []
        self._sent = b""
        self.is_whole = False
        self._closed = self._warned = False

    def start(self) -> None:
        """Bring here what earlier attempts said, and copy from now on."""
        folder = self._run_dir / FOLDER
        pairs: list[tuple[str, Path]] = []
        try:
            entries = self._store.tree(folder.path)
            names = [entry.path[len(self._run_dir.path) + 1 :] for entry in entries]
            pairs = [
                (entry.path, self._desk / name)
                for entry, name in zip(entries, names, strict=True)
                if is_spool(name)
            ]
            for _, target in pairs:
                target.parent.mkdir(parents=True, exist_ok=True)
            self._store.download_all(pairs)
            self.is_whole = True
        except OSError as error:
            self._warn(error)
            for _, target in pairs:
                target.unlink(missing_ok=True)
        self._earlier = put_together(self._desk)
        attempt = f"{self._clock.now():%Y%m%dT%H%M%S%f}-{uuid.uuid4().hex[:8]}"
        self._parts = [
            Parts(self._store, self._run_dir, self._desk / FOLDER / name, attempt)
            for name in (EVENTS, SYSTEM)
        ]
        self._sent = _bytes_of(self._desk / FOLDER / SENT)
        self._begun = self._sent_at = self._clock.monotonic()
        self._ticker = self._clock.repeat(self._tick, self._every_s, "tango-kept-spool")
        self._ticker.start()

    def close(self) -> None:
        """Copy no more; what is under way is awaited.

        Where the files here are not whole, what is new is copied once more.
        """
        self._stop()
        if not self.is_whole:
            self.send()
        with self._lock:
            self._closed = True

    def leave(self) -> None:
        """Copy no more, at once: the run is another driver's."""
        self._stop()
        self._closed = True

    def _stop(self) -> None:
        """Copy at intervals no more; what is under way goes on."""
        if self._ticker:
            self._ticker.stop(wait=False)

    def send(self) -> None:
        """Copy what is new: at most one object for each file, unless much is."""
        with self._lock:
            if self._closed:
                return
            self._sent_at = self._clock.monotonic()
            try:
                # Before the events: offsets must not be ahead of the bytes that they count.
                sent = _bytes_of(self._desk / FOLDER / SENT)
                if self._earlier:
                    for part in self._parts:
                        part.put_start()
                    forget(self._store, self._run_dir, self._earlier)
                    self._earlier = []
                for part in self._parts:
                    part.send()
                if sent and sent != self._sent:
                    self._store.write((self._run_dir / FOLDER / SENT).path, sent)
                    self._sent = sent
            except OSError as error:
                self._warn(error)

    def last_send(self) -> None:
        """Copy what is new, for at most seconds: the job ends badly, and perhaps soon."""
        self._stop()
        if not self._parts:  # another driver has the run
            return
        done = threading.Event()

        def work() -> Callable[[], None]:
            self.send()
            return done.set

        LastingThread.start_on(work)
        done.wait(_LAST_SEND_S)
        self._closed = True

    def forget_parts(self) -> None:
        """Remove the parts if the whole files are in the store."""
        if not self.is_whole:
            return
        with self._lock:
            names = [name for part in self._parts for name in part.names()]
            with suppress(OSError):
                forget(self._store, self._run_dir, names + self._earlier)

    def _tick(self) -> None:
        now = self._clock.monotonic()
        interval = max(self._every_s, (now - self._begun) / _MOST_AT_FULL_RATE)
        if now - self._sent_at >= 0.9 * interval:
            self.send()

    def _warn(self, error: OSError) -> None:
        """Once."""
        if not self._warned:
            logger.warning(
                "what MLflow has not heard of this job is not kept in the store: %s", error
            )
        self._warned = True


def _bytes_of(path: Path) -> bytes:
    """Content of a small file; nothing if it is not there."""
    try:
        return path.read_bytes()
    except FileNotFoundError:
        return b""
