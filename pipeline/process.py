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
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except (OSError, IndexError):
        return False
    return state not in ("Z", "X")
