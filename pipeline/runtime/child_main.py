"""The child's side of `pipeline.runtime.child`: receive a call, run it, reply.

Imports the standard library alone; a called function brings what it needs.
"""

from __future__ import annotations

import contextlib
import ctypes
import errno
import math
import os
import pickle
import resource
import signal
import socket
import struct
import sys
from dataclasses import dataclass
from typing import Any

FRAME_HEADER = struct.Struct("<Q")
STARTUP_LIMIT_S = 60.0
# The parent kills at the time limit; the alarm is for a child whose parent has ended.
ALARM_GRACE_S = 5
_PR_SET_PDEATHSIG = 1


@dataclass(frozen=True)
class Hello:
    """The first message to a new child.

    Attributes:
        memory_gib: Limit of the address space; `None` for no limit.
        die_with_parent: Process id of the parent if the kernel should end the child with it, or
            `None`.
    """

    memory_gib: float | None
    die_with_parent: int | None


def main(descriptor: int) -> None:
    """Serve calls that arrive on an inherited socket until the other end is closed."""
    # Ctrl-C reaches the whole process group; the parent decides what it means.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGALRM, signal.SIG_DFL)
    with socket.socket(fileno=descriptor) as connection:
        message = _receive(connection)
        if message is None:
            return
        hello = pickle.loads(message)
        if hello.die_with_parent is not None:
            _die_with(hello.die_with_parent)
        if hello.memory_gib is not None:
            _limit_memory(hello.memory_gib)
        reply = pickle.dumps(os.getpid())
        while _send(connection, reply) and (message := _receive(connection)) is not None:
            reply = _run(message)


def _run(message: bytearray) -> bytes:
    """Run one call; the reply is a pickled (succeeded, result or exception)."""
    try:
        function, args, timeout_s = pickle.loads(message)
        del message
        signal.alarm(math.ceil(timeout_s) + ALARM_GRACE_S)
        try:
            return pickle.dumps((True, function(*args)), protocol=5)
        finally:
            signal.alarm(0)
    except MemoryError:
        return pickle.dumps((False, MemoryError()))
    except Exception as error:
        return _pickle_error(MemoryError() if _is_out_of_memory(error) else error)


def _is_out_of_memory(error: Exception) -> bool:
    """Whether an import or a system call failed because of the address space limit."""
    return (
        getattr(error, "errno", None) == errno.ENOMEM
        or "failed to map segment" in str(error)
        or "Cannot allocate memory" in str(error)
    )


def _pickle_error(error: Exception) -> bytes:
    """Pickle an exception; one that would not survive that becomes a RuntimeError."""
    with contextlib.suppress(Exception):
        bare = pickle.dumps((False, error.with_traceback(None)))
        pickle.loads(bare)
        return bare
    return pickle.dumps((False, RuntimeError(f"{type(error).__name__}: {error}")))


def _limit_memory(memory_gib: float) -> None:
    """Make allocations beyond the limit fail inside this process; only Linux enforces it."""
    if sys.platform != "linux":
        return
    limit = int(memory_gib * 2**30)
    _, hard = resource.getrlimit(resource.RLIMIT_AS)
    if hard != resource.RLIM_INFINITY:
        limit = min(limit, hard)
    resource.setrlimit(resource.RLIMIT_AS, (limit, hard))


def _die_with(parent: int) -> None:
    """Ask the kernel to end this process with its parent; end now if the parent has ended."""
    if sys.platform != "linux":
        return
    ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:
        sys.exit(0)


def _send(connection: socket.socket, message: bytes) -> bool:
    """Send one message; `False` if nobody listens any more."""
    try:
        connection.sendall(FRAME_HEADER.pack(len(message)))
        connection.sendall(message)
    except OSError:
        return False
    return True


def _receive(connection: socket.socket) -> bytearray | None:
    """Receive one message; `None` at the end of the connection."""
    header = _receive_exactly(connection, FRAME_HEADER.size)
    return None if header is None else _receive_exactly(connection, FRAME_HEADER.unpack(header)[0])


def _receive_exactly(connection: socket.socket, size: int) -> bytearray | None:
    """Receive `size` bytes; `None` if the connection ends first."""
    data = bytearray(size)
    view: Any = memoryview(data)
    at = 0
    while at < size:
        try:
            count = connection.recv_into(view[at:])
        except OSError:
            return None
        if count == 0:
            return None
        at += count
    return data


if __name__ == "__main__":
    main(int(sys.argv[1]))
