"""The process that talks to MLflow, as the driver sees it: started early, waited for at the end.

A server that accepts connections and then stays silent can hold MLflow's client for many minutes,
and MLflow takes seconds to import. So a job never calls it: another process does, which ends with
the driver, and is given up when it makes no progress.
"""

from __future__ import annotations

import json
import os
import queue
import subprocess
import sys
import tempfile
import threading
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import IO

from jobs.tracking.server import TrackingError, default_tracking_uri
from pipeline.redaction import redacted

IDLE_S = 30.0
"""Without progress for so long, an upload is given up."""

COMMAND = (sys.executable, "-m", "jobs.tracking.sender")

# MLflow's own patience is 120 s and seven attempts; ours are in the sender. A user's choice stays.
_PATIENCE = {"MLFLOW_HTTP_REQUEST_TIMEOUT": "20", "MLFLOW_HTTP_REQUEST_MAX_RETRIES": "1"}


class Sender:
    """A running `jobs.tracking.sender`.

    Args:
        run_dir: The run whose events and results it sends.
        tracking_uri: Where to.
        every_s: Seconds between two samples of the machine while a job is at work; `None` for a run
            that is only uploaded.
        command: Starts the process.
    """

    def __init__(
        self,
        run_dir: Path,
        tracking_uri: str,
        every_s: float | None = None,
        *,
        command: Sequence[str] = COMMAND,
    ) -> None:
        environment = {
            **_PATIENCE,
            **os.environ,
            "PYTHONPATH": os.pathsep.join(path or os.getcwd() for path in sys.path),
            "MLFLOW_DISABLE_TELEMETRY": "true",
        }
        self._log: IO[bytes] = tempfile.TemporaryFile()  # noqa: SIM115  (lives with the process)
        self._process = subprocess.Popen(
            command,
            env=environment,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._log,
            text=True,
        )
        self._said: queue.Queue[str | None] = queue.Queue()
        self._finishing = False
        threading.Thread(target=self._listen, name="tango-sender", daemon=True).start()
        # Not as an argument: everybody on the machine can read those.
        order = {"run_dir": str(run_dir), "uri": tracking_uri, "every_s": every_s}
        self._tell(json.dumps(order))

    @property
    def pid(self) -> int:
        """Of the process."""
        return self._process.pid

    def begin(self) -> None:
        """Upload the numbers of the results, which are on disk, while their report is drawn."""
        self._tell("numbers")

    def finish(self, idle_s: float = IDLE_S) -> str:
        """Upload what is left and the results, and wait for it.

        Returns:
            The MLflow run id.

        Raises:
            TrackingError: If it failed, or made no progress for `idle_s` seconds.
        """
        try:
            self._finishing = True
            self._tell("finish")
            while True:
                try:
                    said = self._said.get(timeout=idle_s)
                except queue.Empty:
                    raise TrackingError(f"no progress for {idle_s:g} s") from None
                if said is None:
                    raise TrackingError(self._last_words())
                word, _, rest = said.partition(" ")
                if word == "done":
                    return rest
                if word == "failed":
                    raise TrackingError(rest)
        finally:
            self.kill()

    def end(self, wait_s: float) -> None:
        """Send the events that are there, for at most this time, and end the process."""
        try:
            self._tell("end")
            with suppress(subprocess.TimeoutExpired):
                self._process.wait(wait_s)
        finally:
            self.kill()

    def kill(self) -> None:
        """End the process now."""
        assert self._process.stdin is not None
        with suppress(OSError):  # it ended first
            self._process.stdin.close()
        self._process.kill()
        self._process.wait()

    def _tell(self, line: str) -> None:
        """Write a line; a process that is gone is noticed where its answer is read."""
        assert self._process.stdin is not None
        with suppress(OSError, ValueError):
            self._process.stdin.write(line + "\n")
            self._process.stdin.flush()

    def _listen(self) -> None:
        """Take what the process says; `None` is its end."""
        assert self._process.stdout is not None
        for line in self._process.stdout:
            if self._finishing:
                self._said.put(line.rstrip("\n"))
        self._said.put(None)

    def _last_words(self) -> str:
        """Of a process that died: the last line of its error output."""
        self._log.seek(0)
        lines = self._log.read().decode(errors="replace").strip().splitlines()
        return redacted(lines[-1][:300]) if lines else "the upload process died"


def upload_run(run_dir: Path, tracking_uri: str | None = None, *, idle_s: float = IDLE_S) -> str:
    """Upload a run in a process of its own, as `tango log-run` does.

    Returns:
        The MLflow run id.

    Raises:
        TrackingError: If it failed, or made no progress for `idle_s` seconds.
    """
    uri = tracking_uri or default_tracking_uri(run_dir.parent)
    return Sender(run_dir, uri).finish(idle_s)
