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
    """Name of who runs this; empty for a user id without a name, as containers have."""
    try:
        return getpass.getuser()
    except (KeyError, OSError):
        return ""


def pid() -> int:
    """Id of this process."""
    return os.getpid()


def machine() -> str:
    """This start of this machine and this container; empty where the system does not say.

    Process ids may be compared only where it is the same.
    """
    try:
        started = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
        return f"{started}/{os.readlink('/proc/self/ns/pid')}"
    except OSError:
        return ""


def is_running(pid: int) -> bool:
    """Whether a process of this machine is there and is not only waiting to be collected."""
    return _stat(pid, 0) not in ("", "Z", "X")


def _stat(pid: int, field: int) -> str:
    """A field behind the name of a process in its `/proc` entry; empty if there is none."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[field]
    except (OSError, IndexError):
        return ""


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
    """Process id -> that of its parent; empty where the system does not say."""
    found = {}
    for stat in Path("/proc").glob("[0-9]*/stat"):
        with suppress(OSError, IndexError, ValueError):
            found[int(stat.parent.name)] = int(stat.read_text().rpartition(")")[2].split()[1])
    return found


def leave_at_once(code: int) -> NoReturn:
    """End this process without another step of its own, buffers and threads included."""
    os._exit(code)
