"""One killable child process that does native work on behalf of a worker.

A decoder can hang inside C code, crash, or allocate without end, and no Python construct stops it
there: Ray Data then either waits for ever or restarts the worker on the same item for ever. With a
child process each of these is an ordinary exception in the worker.

The child is a fresh interpreter started with `python -m pipeline.runtime.child_main`, not by
`multiprocessing`: nothing of the parent's `__main__` is imported again, so it starts the same from
a Ray worker, a console script, pytest and a notebook.
"""

from __future__ import annotations

import atexit
import contextlib
import os
import pickle
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from typing import Any, TypeVar

from pipeline.errors import WorkerError
from pipeline.runtime.background import is_lasting
from pipeline.runtime.child_main import FRAME_HEADER, STARTUP_LIMIT_S, Hello

T = TypeVar("T")

_CHUNK = 1 << 20
_STARTS = 3
# Of a process that has closed its end: it is on its way, but a busy machine may be slow.
_ENDS_WITHIN_S = 30.0


class CrashError(RuntimeError):
    """The child process died while it worked on an item."""


class ChildStartError(WorkerError):
    """The child process could not be started: the environment is at fault, not an item."""


class _KilledError(Exception):
    """The child process was killed from outside before it could work."""


class Child:
    """Runs module-level functions in one persistent child process, with a time and a memory limit.

    The process starts with the first call and again after it had to be killed. Calls from several
    threads take turns. It never outlives its parent: an idle child sees the end of its socket, a
    busy one is ended by the kernel with the thread that started it, if that lasts as long as the
    process (Linux), and by its own alarm soon after the time limit (everywhere).
    """

    def __init__(self, memory_gib: float | None = None):
        """Set up; nothing is started yet.

        Args:
            memory_gib: Limit of the child's address space in GiB (RLIMIT_AS, on Linux); `None` for
                no limit. Python with the decoders needs about 0.5 GiB of it.
        """
        if memory_gib is not None and not memory_gib > 0:
            raise ValueError(f"memory_gib must be positive or null, got {memory_gib}")
        self._memory_gib = memory_gib
        self._lock = threading.Lock()
        self._process: subprocess.Popen[bytes] | None = None
        self._socket: socket.socket | None = None
        self._owner = 0
        atexit.register(self._kill_own)

    @property
    def pid(self) -> int | None:
        """Process id of the running child; `None` before the first call and after a kill."""
        return self._process.pid if self._process is not None else None

    def call(
        self,
        function: Callable[..., T],
        *args: Any,
        timeout_s: float,
        about: str,
        what: str = "worker",
    ) -> T:
        """Run `function(*args)` in the child and return its result.

        Args:
            function: Importable by name; neither a lambda nor defined in `__main__`.
            args: Picklable arguments.
            timeout_s: Seconds the call may take, the start of the process not counted.
            about: The item, for error messages, e.g. a file name.
            what: What the child is to the reader of an error message, e.g. `"decoder"`.

        Raises:
            TimeoutError: If the call took longer; the child was killed.
            MemoryError: If the call needed more than the memory limit; the child was replaced.
            CrashError: If the child died.
            ChildStartError: If no child can be started here.
            ValueError: If `function` cannot be found by name in another process.
            Exception: Whatever the function raised, with its message.
        """
        if function.__module__ == "__main__" or "<" in function.__qualname__:
            raise ValueError(
                f"{function.__qualname__} cannot run in a child process; "
                "define it at the top level of an importable module"
            )
        request = pickle.dumps((function, args, timeout_s), protocol=5)
        with self._lock:
            self._ensure_running()
            try:
                reply = self._exchange(request, time.monotonic() + timeout_s)
            except TimeoutError:
                self._kill()
                raise TimeoutError(
                    f"{about}: no result from the {what} within {timeout_s:g} s"
                ) from None
            except (EOFError, OSError):
                raise self._death_reason(about, what, timeout_s) from None
            except BaseException:
                # An interrupted exchange (Ctrl-C, a cancelled Ray task) leaves half a message in
                # the socket.
                self._kill()
                raise
            succeeded, value = pickle.loads(reply)
            if isinstance(value, MemoryError) and not succeeded:
                self._kill()
                raise MemoryError(f"{about}: the {what} needed more than {self._memory_gib} GiB")
        if succeeded:
            result: T = value
            return result
        raise value

    def close(self) -> None:
        """End the child; a later call starts a new one."""
        with self._lock:
            self._kill()

    def _ensure_running(self) -> None:
        """Start a child unless a living one of this very process (not of a forked one) is there."""
        if self._owner != os.getpid():
            self._process, self._socket = None, None
        if self._process is not None and self._process.poll() is not None:
            self._kill()
        if self._process is None:
            self._start()

    def _start(self) -> None:
        """Start a child; one that somebody kills meanwhile, as if memory is short, again."""
        for left in reversed(range(_STARTS)):
            try:
                self._start_once()
            except _KilledError as error:
                if not left:
                    raise ChildStartError(f"{error}, {_STARTS} times in a row") from error
            else:
                return

    def _start_once(self) -> None:
        """Start an interpreter that finds modules where this one does, and await its answer."""
        ours, theirs = socket.socketpair()
        environment = {
            **os.environ,
            "PYTHONPATH": os.pathsep.join(entry or os.getcwd() for entry in sys.path),
            # One worker is one CPU; thread pools would also eat the address space.
            "OMP_NUM_THREADS": "1",
            "OPENBLAS_NUM_THREADS": "1",
        }
        command = [sys.executable, "-m", "pipeline.runtime.child_main", str(theirs.fileno())]
        try:
            with theirs:
                process = subprocess.Popen(
                    command, stdin=subprocess.DEVNULL, env=environment, pass_fds=(theirs.fileno(),)
                )
        except OSError as error:
            ours.close()
            raise ChildStartError(f"cannot start {' '.join(command[:3])}: {error}") from error
        self._process, self._socket, self._owner = process, ours, os.getpid()
        # The kernel's parent-death signal is tied to the thread that started the process.
        tied = is_lasting(threading.current_thread())
        hello = Hello(memory_gib=self._memory_gib, die_with_parent=os.getpid() if tied else None)
        try:
            self._exchange(pickle.dumps(hello), time.monotonic() + STARTUP_LIMIT_S)
        except (EOFError, OSError) as error:
            if not isinstance(error, TimeoutError):  # it has closed its end, and ends
                with contextlib.suppress(subprocess.TimeoutExpired):
                    process.wait(_ENDS_WITHIN_S)
            killed = process.returncode == -signal.SIGKILL
            self._kill()
            name = f"the child process ({' '.join(command[:3])})"
            if killed:
                raise _KilledError(f"{name} was killed while it started") from error
            raise ChildStartError(
                f"{name} did not start: exit code {process.returncode}; its message is in this "
                "worker's stderr"
            ) from error

    def _exchange(self, message: bytes, deadline: float) -> bytearray:
        """Send one message and receive one, both before `deadline`."""
        assert self._socket is not None
        self._set_timeout(deadline)
        self._socket.sendall(FRAME_HEADER.pack(len(message)) + message)
        (size,) = FRAME_HEADER.unpack(self._receive(FRAME_HEADER.size, deadline))
        return self._receive(size, deadline)

    def _receive(self, size: int, deadline: float) -> bytearray:
        """Receive exactly `size` bytes before `deadline`."""
        assert self._socket is not None
        data = bytearray(size)
        view, at = memoryview(data), 0
        while at < size:
            self._set_timeout(deadline)
            count = self._socket.recv_into(view[at : at + _CHUNK])
            if count == 0:
                raise EOFError
            at += count
        return data

    def _set_timeout(self, deadline: float) -> None:
        """Let the next socket operation wait until `deadline`."""
        assert self._socket is not None
        left = deadline - time.monotonic()
        if left <= 0:
            raise TimeoutError
        self._socket.settimeout(left)

    def _death_reason(self, about: str, what: str, timeout_s: float) -> Exception:
        """Why the child died, as an exception; the child is cleaned up."""
        assert self._process is not None
        process = self._process
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(_ENDS_WITHIN_S)
        self._kill()
        code = process.returncode
        if code >= 0:
            return CrashError(f"{about}: the {what} exited with status {code}")
        if -code == signal.SIGALRM:
            return TimeoutError(f"{about}: no result from the {what} within {timeout_s:g} s")
        try:
            name = f"signal {-code} ({signal.Signals(-code).name})"
        except ValueError:
            name = f"signal {-code}"
        return CrashError(f"{about}: the {what} crashed with {name}")

    def _kill_own(self) -> None:
        """At exit: end the child unless it belongs to the process we were forked from."""
        if self._owner == os.getpid():
            self._kill()

    def _kill(self) -> None:
        """End the child without asking, and reap it."""
        process, connection = self._process, self._socket
        self._process, self._socket = None, None
        if connection is not None:
            connection.close()
        if process is not None:
            process.kill()
            process.wait()
