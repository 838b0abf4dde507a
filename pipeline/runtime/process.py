"""Processes of this machine: identify, look up and end them."""

from __future__ import annotations

import getpass
import os
import socket
from contextlib import suppress
from pathlib import Path

# psutil is imported in functions, so that a command without the extras can name the missing one.


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
    import psutil

    try:
        return bool(psutil.Process(pid).status() not in (psutil.STATUS_ZOMBIE, psutil.STATUS_DEAD))
    except psutil.Error:
        return False


def end_descendants() -> None:
    """Kill every process below this one: decode children, uploads, a Ray of our own.

    Ray's agents are not children of ours; they notice the end of their parents, but look for them
    for a minute.
    """
    import psutil

    for child in psutil.Process().children(recursive=True):
        with suppress(psutil.Error):
            child.kill()
