"""Processes of this machine: identify, look up and end them."""

from __future__ import annotations

import getpass
import os
import signal
import socket
from contextlib import suppress
from pathlib import Path
from typing import NoReturn


def host() -> str:
    """Name of this machine."""
    return socket.gethostname()


def user() -> str:
    """Name of the current user; empty for a user id without a name, as in containers."""
    try:
        return getpass.getuser()
    except (KeyError, OSError):
        return ""


def pid() -> int:
    """Id of this process."""
    return os.getpid()


def machine() -> str:
    """Id of this boot of the machine and of the container; empty if unknown.

    Process ids are comparable only if it is the same.
    """
    try:
        started = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
        return f"{started}/{os.readlink('/proc/self/ns/pid')}"
    except OSError:
        return ""


def is_running(pid: int) -> bool:
    """Whether a process of this machine exists and is no zombie."""
    return _stat(pid, 0) not in ("", "Z", "X")


def started(pid: int) -> str:
    """Start time of a process of this machine in clock ticks; empty if unknown.

    Together with it a process id is unique, although ids are reused.
    """
    return _stat(pid, 19)


def _stat(pid: int, field: int) -> str:
    """A field after the process name in `/proc/PID/stat`; empty if there is none."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[field]
    except (OSError, IndexError):
        return ""


def end_descendants() -> None:
    """Kill all descendants of this process, such as decode children and its own Ray (on Linux).

    Ray's agents are no descendants; they exit within about a minute after their parents.
    """
    below = {os.getpid()}
    parents = _parents()
    while more := {child for child, parent in parents.items() if parent in below} - below:
        below |= more
    for child in below - {os.getpid()}:
        with suppress(OSError):
            os.kill(child, signal.SIGKILL)


def _parents() -> dict[int, int]:
    """Process id -> id of its parent; empty if unknown."""
    found = {}
    for stat in Path("/proc").glob("[0-9]*/stat"):
        with suppress(OSError, IndexError, ValueError):
            found[int(stat.parent.name)] = int(stat.read_text().rpartition(")")[2].split()[1])
    return found


def leave_at_once(code: int) -> NoReturn:
    """Exit immediately, without flushing buffers or waiting for threads."""
    os._exit(code)
