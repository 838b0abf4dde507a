"""Processes of this machine: identify, look up and end them."""

from __future__ import annotations

import getpass
import os
import signal
import socket
from contextlib import suppress
from pathlib import Path


def host() -> str:
    """Name of this machine."""
    return socket.gethostname()


def user() -> str:
    """Name of the user; empty for a user id without a name, as in containers."""
    try:
        return getpass.getuser()
    except (KeyError, OSError):
        return ""


def pid() -> int:
    """Id of this process."""
    return os.getpid()


def machine() -> str:
    """Id of this boot of the machine or container; empty if unknown.

    Process ids may be compared only if it is the same.
    """
    try:
        started = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
        return f"{started}/{os.readlink('/proc/self/ns/pid')}"
    except OSError:
        return ""


def is_running(pid: int) -> bool:
    """Whether a process of this machine exists and is no zombie."""
    try:
        stat = Path(f"/proc/{pid}/stat").read_text()
    except OSError:
        return False
    return stat.rpartition(")")[2].split()[0] not in ("Z", "X")


def end_descendants() -> None:
    """Kill every process below this one: decode children, uploads, a Ray of our own (on Linux).

    Ray's agents are not children of ours; they notice the end of their parents, but look for them
    for a minute.
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
