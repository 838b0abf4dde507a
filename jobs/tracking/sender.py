"""The process that talks to MLflow: `python -m jobs.tracking.sender`, started by `upload.py`.

Its first line of input is an order in JSON. Then it sends new events of the run at intervals, and
tries again when the store is away. A line `numbers` says that the results are there and their
report is not, a line `finish` asks for the rest and all results, a line `end` for the rest alone.
When its input closes without the last two, the driver is dead, and it ends at once.

It says `.` for progress, and in the end `done <id>` or `failed <reason>`.
"""

from __future__ import annotations

import json
import os
import queue
import sys
import threading
import time
from contextlib import suppress
from pathlib import Path
from typing import IO, Any

from jobs.tracking.log_run import log_run
from jobs.tracking.mlflow_runs import EXPERIMENT, MlflowRuns
from jobs.tracking.replay import Replay
from jobs.tracking.results_upload import Results, ResultsUpload
from jobs.tracking.run_files import RunDirectory
from jobs.tracking.server import (
    TrackingError,
    experiment_id,
    first_line,
    mlflow_client,
    raise_if_unusable,
    tracking_errors,
)
from jobs.tracking.spool import FOLDER, SYSTEM, Sent, Spool
from jobs.tracking.upkeep import Upkeep
from pipeline.clock import SYSTEM_CLOCK, Ticker

_LONGEST_PAUSE_S = 60.0
_PULSE_S = 2.0
_WITHOUT_SERVER_S = 30.0
_AGAIN_S = (2.0, 5.0, 10.0)
"""Pauses before a server that has answered, and then failed, is asked for the results again."""
# Of a working process in one pulse; one that waits for a server uses next to nothing.
_WORK_S = 0.02


def main() -> int:
    """Run until the driver says `finish` or `end`, or dies."""
    with suppress(OSError):
        os.nice(5)  # the job's own processes come first
    order = json.loads(sys.stdin.readline() or "{}")
    if not order:
        return 1
    control = _Control(sys.stdin)
    run_dir, uri, every_s = Path(order["run_dir"]), order["uri"], order["every_s"]
    begun = None
    with _Pulse():
        if every_s is None:
            command = control.wait(None)
        else:
            watch = _Watch(run_dir, uri, every_s)
            command, begun = watch.until_told(control), watch.begun
        return _finish(run_dir, uri, begun) if command == "finish" else 0


def _finish(run_dir: Path, uri: str, begun: ResultsUpload | None) -> int:
    """Upload everything, and say how it went.

    Repeating an upload updates the same MLflow runs, so that a server that starts anew or has too
    much to do for a moment costs seconds and no run; one that has never answered is not waited for.
    """
    heard = begun is not None

    def progress() -> None:
        nonlocal heard
        heard = True
        _say_progress()

    pauses = iter(_AGAIN_S)
    while True:
        try:
            run = log_run(run_dir, uri, progress=progress, begun=begun)
        except (TrackingError, FileNotFoundError, ValueError) as error:
            again = heard and isinstance(error, TrackingError)
            pause_s = next(pauses, None) if again else None
            if pause_s is None:
                print(f"failed {first_line(error)}", flush=True)
                return 1
            time.sleep(pause_s)
        else:
            print(f"done {run}", flush=True)
            return 0


def _say_progress() -> None:
    print(".", flush=True)


class _Control:
    """What the driver says, and whether it lives."""

    def __init__(self, source: IO[str]) -> None:
        self._source = source
        self._commands: queue.Queue[str] = queue.Queue()
        self._driver = os.getppid()
        threading.Thread(target=self._listen, name="tango-control", daemon=True).start()
        Ticker(self._end_without_driver, 1.0, "tango-orphan").start()

    def wait(self, timeout_s: float | None) -> str | None:
        """The next command; `None` if there is none within the time."""
        try:
            return self._commands.get(timeout=timeout_s)
        except queue.Empty:
            return None

    def _listen(self) -> None:
        for line in self._source:
            self._commands.put(line.strip())
        os._exit(1)

    def _end_without_driver(self) -> None:
        """The pipe alone may stay open in another child of a driver that was killed."""
        if os.getppid() != self._driver:
            os._exit(1)


class _Watch:
    """Sends the events of one run while its job is at work.

    Attributes:
        begun: Has sent the numbers of the results; `None` if they were not there, or not all.
    """

    begun: ResultsUpload | None = None

    def __init__(self, run_dir: Path, uri: str, every_s: float) -> None:
        self.run_dir, self._uri, self._every_s = run_dir, uri, every_s
        self._replay: Replay | None = None
        self._upkeep: Upkeep | None = None

    def until_told(self, control: _Control) -> str:
        """Send new events at intervals until a command comes, and then once more."""
        begun, pause = time.monotonic(), min(2.0, self._every_s)
        poll, system = pause, None
        while True:
            command = control.wait(pause)
            try:
                if command != "finish":  # the upload begins with what was not sent yet
                    self.send()
                if command == "numbers":
                    self.numbers()
                pause = poll
            except (TrackingError, ValueError, LookupError, TypeError, OSError) as error:
                print(first_line(error), file=sys.stderr, flush=True)
                pause = min(2 * pause, _LONGEST_PAUSE_S)
            if command and command != "numbers":
                if system:
                    system.stop()
                return command
            # MLflow takes seconds to import: not for a job that is over by then and no server.
            if system is None and (self._replay or time.monotonic() - begun > _WITHOUT_SERVER_S):
                system = _SystemMetrics(self.run_dir, self._every_s)
                system.start()

    def send(self) -> None:
        """Send what is new.

        Raises:
            TrackingError: If the store is away or refuses it.
            ValueError: If the store cannot be used at all.
        """
        raise_if_unusable(self._uri)
        with tracking_errors():
            if self._replay is None:
                files = RunDirectory(self.run_dir)
                client = mlflow_client(self._uri)
                experiment = experiment_id(client, EXPERIMENT, self._uri, files.artifact_root())
                runs = MlflowRuns(client, experiment, self.run_dir.name)
                self._replay = Replay(runs, files, Sent.load(self.run_dir, self._uri))
                self._upkeep = Upkeep(self._replay, self._uri)
            if self._replay.send() and self._upkeep:
                self._upkeep.now_and_then()

    def numbers(self) -> None:
        """Send the results' numbers, beside the driver that draws their report.

        Raises:
            TrackingError: If the store is away or refuses them.
            FileNotFoundError: If the results are not on this machine yet.
        """
        with tracking_errors():
            if self._replay is None or not self._replay.sent.run:
                return
            runs, files = self._replay.runs, self._replay.files
            upload = ResultsUpload(runs, files, Results(files), SYSTEM_CLOCK)
            upload.numbers()
            self.begun = upload


class _SystemMetrics:
    """CPU, memory, disk, network and GPUs of the driver's machine, by MLflow's own monitors.

    Its thread imports nothing: two threads that import MLflow at the same time fail.
    """

    def __init__(self, run_dir: Path, every_s: float) -> None:
        from mlflow.system_metrics.metrics.cpu_monitor import CPUMonitor
        from mlflow.system_metrics.metrics.disk_monitor import DiskMonitor
        from mlflow.system_metrics.metrics.gpu_monitor import GPUMonitor
        from mlflow.system_metrics.metrics.network_monitor import NetworkMonitor

        self._monitors: list[Any] = [CPUMonitor(), DiskMonitor(), NetworkMonitor()]
        with suppress(ImportError, RuntimeError):  # no GPU here, or no package that knows it
            self._monitors.append(GPUMonitor())
        self._spool = Spool(run_dir / FOLDER / SYSTEM)
        self._begun = time.time()
        self._ticker = Ticker(self.sample, every_s, "tango-system")

    def start(self) -> None:
        """Take a sample at intervals."""
        self._ticker.start()

    def stop(self) -> None:
        """Take no more."""
        self._ticker.stop()

    def sample(self) -> None:
        """Take one."""
        metrics: dict[str, float] = {}
        for monitor in self._monitors:
            monitor.collect_metrics()
            values = monitor.aggregate_metrics()
            metrics |= {f"system/{name}": float(value) for name, value in values.items()}
            monitor.clear_metrics()
        now = time.time()
        step = int(now - self._begun)
        self._spool.write(
            {"kind": "sample", "time": int(1000 * now), "step": step, "metrics": metrics}
        )


class _Pulse:
    """Says that there is progress while this process works between two requests.

    Imports, summaries and large files take time in which no request comes back.
    """

    def __init__(self) -> None:
        self._worked = time.process_time()
        self._read = _bytes_read()
        self._ticker = Ticker(self._look, _PULSE_S, "tango-pulse")

    def __enter__(self) -> _Pulse:
        self._ticker.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._ticker.stop()

    def _look(self) -> None:
        worked, read = time.process_time(), _bytes_read()
        if worked - self._worked > _WORK_S or read - self._read > 65536:
            _say_progress()
        self._worked, self._read = worked, read


def _bytes_read() -> int:
    """By this process so far; 0 where the system does not say."""
    try:
        fields = dict(line.split(": ") for line in Path("/proc/self/io").read_text().splitlines())
        return int(fields["rchar"])
    except (OSError, ValueError, KeyError):
        return 0


if __name__ == "__main__":
    sys.exit(main())
