"""A tracking server that hangs, and who sends to it, around the real events and their upload."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, cast

from jobs.tracking.events import EventFile
from jobs.tracking.runs import MlflowRuns, Point
from jobs.tracking.server import TrackingError
from jobs.tracking.upload import RunUpload
from tests.chaos.simulator.world import Process

if TYPE_CHECKING:
    from tests.chaos.simulator.running import Running

URI = "http://tracking.simulated"
EVERY_S = 5.0
REQUEST_S = 20.0
"""After so long a request to a silent server fails."""


@dataclass
class ServerRun:
    """What the server shows of one run."""

    tags: dict[str, str] = field(default_factory=dict)
    points: set[Point] = field(default_factory=set)
    status: str = "RUNNING"


@dataclass
class Server:
    """Keeps runs by the names of their directories."""

    runs: dict[str, ServerRun] = field(default_factory=dict)
    made: list[str] = field(default_factory=list)
    hangs_until: float = -1.0


class Client:
    """What `RunUpload` asks of `MlflowRuns`, as one process reaches the server."""

    def __init__(self, server: Server, process: Process, run_id: str) -> None:
        self._server, self._process, self._run_id = server, process, run_id

    def _ask(self) -> ServerRun:
        self._process.step("request")
        if self._process.world.time < self._server.hangs_until:
            self._process.wait(REQUEST_S)
            raise TrackingError("no answer in time")
        return self._server.runs.setdefault(self._run_id, ServerRun())

    def start(self, name: str, tags: Mapping[str, str], started_ms: int | None) -> Any:
        self._ask().tags |= tags
        return SimpleNamespace(info=SimpleNamespace(run_id=self._run_id))

    def run_on(self, run: str, driver: str) -> None:
        self._ask().status = "RUNNING"

    def log(self, run: str, *, metrics: Sequence[Point]) -> None:
        found = self._ask()
        found.points |= set(metrics)

    def end(self, run: str, status: str, end_ms: int, reason: str = "") -> None:
        self._ask().status = status


class SimulatedEvents(EventFile):
    """The file of events; a process that is dead writes nothing more to it."""

    def __init__(self, path: Path) -> None:
        super().__init__(path)
        self._process = _this_process()

    def write(self, event: Mapping[str, Any]) -> None:
        self._process.step("events")
        super().write(event)


class SimulatedSender:
    """In the place of `jobs.tracking.live.Sender`: a process that sends events."""

    def __init__(self, run_dir: Path, uri: str, every_s: float) -> None:
        from tests.chaos.simulator.running import Running

        self._running, self._run_dir = Running.now, run_dir
        self._driver = _this_process()
        self._told, self._progress = "", 0
        self._process = self._running.world.spawn(
            f"sender-{len(self._running.world.processes)}",
            self._driver.machine,
            self._send,
            self._driver,
        )

    def finish(self, idle_s: float) -> str:
        """See `Sender`: given up when nothing moves."""
        self._told = "finish"
        try:
            while True:
                seen, until = self._progress, self._driver.world.time + idle_s
                while self._driver.world.time < until and self._progress == seen:
                    if self._process.ended:
                        break
                    self._driver.wait(1.0)
                if self._process.ended and self._process.error is None:
                    return str(self._process.value)
                if self._process.ended or self._progress == seen:
                    raise TrackingError(f"no progress for {idle_s:g} s")
        finally:
            self.abandon()

    def end(self, wait_s: float) -> None:
        """See `Sender`."""
        self._told = "end"
        until = self._driver.world.time + wait_s
        while self._driver.world.time < until and not self._process.ended:
            self._driver.wait(0.5)
        self.abandon()

    def machine_metrics(self) -> dict[str, float]:
        """None: nothing of this machine is asked."""
        return {}

    def abandon(self) -> None:
        """See `Sender`."""
        self._running.world.kill(self._process)

    def _send(self, process: Process) -> str:
        """New events at intervals, and the rest when told."""
        name = self._run_dir.name
        runs = cast(MlflowRuns, Client(self._running.server, process, name))
        upload = RunUpload(self._run_dir, URI, runs=runs)
        while not self._driver.ended and not self._driver.dead:
            told = self._told
            with suppress(TrackingError):
                upload.events()
                self._progress += 1
                if told == "finish":
                    return name
            if told == "end":
                return name
            process.wait(2.0)
        return ""


def _this_process() -> Process:
    """The process that has its turn."""
    from tests.chaos.simulator.running import Running

    assert Running.now.world.running is not None
    return Running.now.world.running


def tear_events(running: Running, machine: int) -> None:
    """A power failure cuts the end off what was appended and not synchronised."""
    for folder, process in running.writers.items():
        path = folder / "tracking" / "events.jsonl"
        if process.machine == machine and path.is_file():
            data = path.read_bytes()
            path.write_bytes(data[: max(0, len(data) - 7)])


def problem_of(running: Running, run: str, folder: Path) -> str:
    """What the server lacks of a run whose upload was called complete; "" if nothing."""
    found = running.server.runs.get(run)
    if found is None:
        return "the tracking server has never heard of the run"
    if found.status != "FINISHED":
        return f"the tracking server shows a finished run as {found.status}"
    said: set[Point] = set()
    for line in (folder / "tracking" / "events.jsonl").read_text().splitlines():
        with suppress(ValueError):
            event = json.loads(line)
            for name, value in (event.get("metrics") or {}).items():
                said.add((name, float(value), int(event["time"]), int(event["step"])))
    if lost := said - found.points:
        return f"the tracking server lacks {len(lost)} of {len(said)} points"
    return ""
