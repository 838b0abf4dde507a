"""Keep what Ray's core writes to the terminal away from it, and everything else on it."""

from __future__ import annotations

import os
import re
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress

from pipeline.runtime import stopping

# Behind it, all lines that were said before have been passed on.
_MARK = b"\0"
# That takes no time, except on a machine that is very busy, or where nobody reads any more.
_PASSED_WITHIN_S = 5.0
# `[2026-01-31 12:00:00,000 I 42 42] file.cc:1: ...`; also `(raylet)` and `(pid=42, ip=...)` lines.
_NATIVE = re.compile(rb"^\[\d{4}-\d\d-\d\d [\d:,]+ [IWEFCD] \d+ \d+\]|^\((?:raylet|pid=|gcs)")


@contextmanager
def without_native_lines() -> Iterator[None]:
    """Drop the lines of Ray's core from file descriptor 2 of this process while the block runs.

    Ray's log files keep them. Lines of other threads, our own log among them, pass.
    """
    sys.stderr.flush()
    saved = os.dup(2)
    readable, writable = os.pipe()
    os.set_inheritable(saved, False)
    os.dup2(writable, 2)
    passed = threading.Event()
    pump = threading.Thread(target=_pass_on, args=(readable, saved, passed), daemon=True)
    pump.start()

    def wait_for_lines() -> None:
        with suppress(OSError):
            os.write(writable, _MARK + b"\n")
            passed.wait(_PASSED_WITHIN_S)

    try:
        with stopping.before_leaving(wait_for_lines):
            yield
    finally:
        sys.stderr.flush()
        wait_for_lines()
        os.dup2(saved, 2)
        os.close(writable)  # the last writing end of this process
        # A child process may have inherited a writing end: whatever it still says is passed on.
        pump.join(timeout=0.2)


def _pass_on(readable: int, to: int, passed: threading.Event) -> None:
    """Copy lines until every writer has closed the pipe; say when those before a mark are there."""
    with open(readable, "rb", buffering=0) as pipe:
        rest = b""
        while chunk := pipe.read(65536):
            *lines, rest = (rest + chunk).split(b"\n")
            for line in lines:
                if line.endswith(_MARK):
                    if not _NATIVE.match(line):
                        _tell(to, line.removesuffix(_MARK))
                    passed.set()
                elif not _NATIVE.match(line):
                    _tell(to, line + b"\n")
        if rest and not _NATIVE.match(rest):
            _tell(to, rest)
    os.close(to)


def _tell(to: int, line: bytes) -> None:
    """Write where people read, if anybody still does."""
    with suppress(OSError):
        os.write(to, line)
