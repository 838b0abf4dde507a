"""What the lease of a run says of a driver's process, and whether a process still runs."""

from __future__ import annotations

import os
import socket
from pathlib import Path


def host() -> str:
    """Name of this machine."""
    return socket.gethostname()


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


def started(pid: int) -> str:
    """When a process of this machine started, in the kernel's ticks; empty where it is not known.

    A process id is given to another process sooner or later; with this beside it, it is not.
    """
    return _stat(pid, 19)


def _stat(pid: int, field: int) -> str:
    """A field behind the name of a process in its `/proc` entry; empty if there is none."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[field]
    except (OSError, IndexError):
        return ""
