"""Time and memory of this process, phase by phase, as Linux counts them."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

_STATUS = Path("/proc/self/status")
_EVERY_S = 0.02


@dataclass
class Phase:
    """What one phase took.

    Attributes:
        name: Of the phase.
        seconds: On the clock.
        cpu_seconds: Of all threads.
        before: Bytes of resident memory when it began.
        peak: Bytes of resident memory at its highest, pages of mapped files included.
        peak_own: Bytes at their highest that no file holds: what cannot be dropped and read again.
        read: Bytes that the disk had to read.
    """

    name: str
    seconds: float = 0.0
    cpu_seconds: float = 0.0
    before: int = 0
    peak: int = 0
    peak_own: int = 0
    read: int = 0


@dataclass
class Recorder:
    """Measures phases one after the other."""

    phases: list[Phase] = field(default_factory=list)

    @contextmanager
    def phase(self, name: str) -> Iterator[Phase]:
        """Measure what happens inside."""
        found = Phase(name, before=_status("VmRSS"))
        Path("/proc/self/clear_refs").write_text("5")  # VmHWM starts again from here
        done = threading.Event()
        watcher = threading.Thread(target=_watch, args=(found, done), daemon=True)
        read = _read_bytes()
        started, cpu = time.perf_counter(), time.process_time()
        watcher.start()
        try:
            yield found
        finally:
            found.seconds = time.perf_counter() - started
            found.cpu_seconds = time.process_time() - cpu
            done.set()
            watcher.join()
            found.peak = _status("VmHWM")
            found.read = _read_bytes() - read
            self.phases.append(found)


def _watch(phase: Phase, done: threading.Event) -> None:
    """Follow the memory that is the process's own."""
    while True:
        phase.peak_own = max(phase.peak_own, _status("RssAnon") + _status("RssShmem"))
        if done.wait(_EVERY_S):
            return


def _status(name: str) -> int:
    """Bytes of a line of /proc/self/status."""
    for line in _STATUS.read_text().splitlines():
        if line.startswith(f"{name}:"):
            return int(line.split()[1]) * 1024
    raise ValueError(f"{_STATUS} has no line {name}")


def _read_bytes() -> int:
    """Bytes that this process made the disk read."""
    for line in Path("/proc/self/io").read_text().splitlines():
        if line.startswith("read_bytes:"):
            return int(line.split()[1])
    return 0
