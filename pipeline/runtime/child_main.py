"""Main program of the child process of `pipeline.runtime.child`: receive a call, run it, reply.

Imports only the standard library; called functions import what they need.
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
import sys
from multiprocessing.connection import Connection

STARTUP_LIMIT_S = 60.0
# The parent kills the child at the time limit; the alarm is for a child whose parent has ended.
ALARM_GRACE_S = 5
_PR_SET_PDEATHSIG = 1


def main(descriptor: int, memory_gib: float, parent: int) -> None:
    """Serve calls that arrive on an inherited connection until its other end is closed.

    Args:
        descriptor: File descriptor of the connection.
        memory_gib: Limit of the address space; 0 for none.
        parent: Process id of the parent, with which the kernel ends this process.
    """
    # Ctrl-C reaches the whole process group; the parent handles it.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGALRM, signal.SIG_DFL)
    if sys.platform == "linux":
        ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
        if os.getppid() != parent:
            return
    if memory_gib:
        _limit_memory(memory_gib)
    with Connection(descriptor) as connection, contextlib.suppress(EOFError, OSError):
        connection.send_bytes(b"ready")
        while True:
            connection.send_bytes(_run(connection.recv_bytes()))


def _run(message: bytes) -> bytes:
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
    """Pickle an exception; one that cannot be unpickled becomes a RuntimeError."""
    with contextlib.suppress(Exception):
        bare = pickle.dumps((False, error.with_traceback(None)))
        pickle.loads(bare)
        return bare
    return pickle.dumps((False, RuntimeError(f"{type(error).__name__}: {error}")))


def _limit_memory(memory_gib: float) -> None:
    """Limit the address space of this process; only Linux enforces it."""
    if sys.platform != "linux":
        return
    limit = int(memory_gib * 2**30)
    _, hard = resource.getrlimit(resource.RLIMIT_AS)
    if hard != resource.RLIM_INFINITY:
        limit = min(limit, hard)
    resource.setrlimit(resource.RLIMIT_AS, (limit, hard))


if __name__ == "__main__":
    main(int(sys.argv[1]), float(sys.argv[2]), int(sys.argv[3]))
