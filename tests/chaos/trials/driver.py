"""Drivers of real jobs: `tango` in processes of their own, forked from one that has imported it.

    python -m tests.chaos.trials.driver     # reads commands, one JSON object per line

Importing the libraries would be most of the processor time of a trial. A forked driver is a process
like any other: it hears signals, starts Ray, decode children and uploads, and can be killed.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

PATIENCE_S = 400.0


@dataclass
class Driver:
    """One process of the command.

    Attributes:
        forker: What it was forked from.
        pid: Of the process, and of its session.
        log: What it says.
    """

    forker: Forker
    pid: int
    log: Path
    _code: int | None = None

    def poll(self) -> int | None:
        """Its exit code; `None` while it lives; -9 if it was killed."""
        if self._code is None:
            self._code = self.forker.ask({"poll": self.pid})
        return self._code

    def wait(self) -> int:
        """Wait for its end."""
        return int(self.until(lambda: False) or 0)

    def until(self, condition: Callable[[], object]) -> int | None:
        """Wait until something is true; the exit code if the process ends before."""
        deadline = time.monotonic() + PATIENCE_S
        while self.poll() is None:
            if condition():
                return None
            if time.monotonic() > deadline:
                self.kill()
                raise AssertionError(f"nothing happened: {self.text()}")
            time.sleep(0.05)
        return self.poll()

    def signal(self, signum: int) -> None:
        """Send it a signal, if it lives."""
        with suppress(ProcessLookupError):
            os.kill(self.pid, signum)

    def kill(self) -> None:
        """End it and all that it has started."""
        with suppress(ProcessLookupError):
            os.killpg(self.pid, signal.SIGKILL)

    def text(self) -> str:
        """What it has said so far."""
        return self.log.read_text(errors="replace") if self.log.exists() else ""


class Forker:
    """The process that has imported everything, from outside."""

    def __init__(self, process: subprocess.Popen[str]) -> None:
        self._process = process
        assert self.ask({"poll": 0}) is None

    def ask(self, command: Mapping[str, Any]) -> Any:
        """Give a command and return the reply."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(json.dumps(command) + "\n")
        self._process.stdin.flush()
        return json.loads(self._process.stdout.readline())

    def start(self, *arguments: object, log: Path, tracked: bool = False, **env: str) -> Driver:
        """Start `tango` with arguments.

        Args:
            arguments: Of the command.
            log: File for what it says.
            tracked: Whether it tells a tracking server of itself.
            env: Added to its environment.
        """
        command = {"tango": list(map(str, arguments)), "log": str(log), "env": env}
        return Driver(self, self.ask({**command, "tracked": tracked}), log)


@contextmanager
def forker() -> Iterator[Forker]:
    """Start it; it ends with the block."""
    with subprocess.Popen(
        [sys.executable, "-m", __name__],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        start_new_session=True,
    ) as process:
        try:
            yield Forker(process)
        finally:
            process.kill()


class NoServer:
    """In the place of the thread that uploads, where no tracking server is looked at."""

    def __init__(self, *about: object) -> None:
        pass

    def machine_metrics(self) -> dict[str, float]:
        """Nothing."""
        return {}

    def finish(self, idle_s: float = 0) -> str:
        """Nothing."""
        return ""

    def end(self, within_s: float = 0) -> None:
        """Nothing."""

    def abandon(self) -> None:
        """Nothing."""


def _serve() -> None:
    """Fork drivers, and say how they ended."""
    import matplotlib.pyplot
    import ray
    import torch  # noqa: F401
    import transformers  # noqa: F401

    import jobs.cli.main
    import jobs.report.page
    import jobs.run.run_job
    import jobs.run.sweep
    import jobs.tracking.live  # noqa: F401

    assert matplotlib.pyplot is not None
    assert not ray.is_initialized()
    for line in sys.stdin:
        command = json.loads(line)
        if "poll" in command:
            reply = _ended(command["poll"])
        elif (reply := os.fork()) == 0:
            _become(command)
            return
        print(json.dumps(reply), flush=True)


def _become(command: Mapping[str, Any]) -> None:
    """In the fork: be `tango`."""
    import jobs.tracking.live
    from jobs.cli.entry import main

    os.setsid()
    for signum in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(signum, signal.SIG_DFL)
    signal.signal(signal.SIGINT, signal.default_int_handler)
    os.environ.update(command["env"])
    log = os.open(command["log"], os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
    null = os.open(os.devnull, os.O_RDONLY)
    for descriptor, target in ((null, 0), (log, 1), (log, 2)):
        os.dup2(descriptor, target)
    if not command["tracked"]:
        jobs.tracking.live.Sender = NoServer  # type: ignore[assignment, misc]
    sys.argv = ["tango", *command["tango"]]
    main()


def _ended(pid: int) -> int | None:
    """Exit code of a child; `None` if it lives."""
    if pid == 0:
        return None
    done, status = os.waitpid(pid, os.WNOHANG)
    return os.waitstatus_to_exitcode(status) if done else None


if __name__ == "__main__":
    _serve()
