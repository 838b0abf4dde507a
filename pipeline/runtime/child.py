"""A child process that runs native code for a worker and can be killed.

A decoder can hang inside C code, crash, or allocate memory without limit, and Python cannot stop
it: Ray Data would wait or restart the worker on the same item forever. With a child process each of
these becomes an ordinary exception in the worker.

The child is a fresh interpreter started with `python -m pipeline.runtime.child_main`, not by
`multiprocessing`, so that the parent's `__main__` is not imported again and it also starts from a
Ray worker, a console script, pytest or a notebook.
"""

from __future__ import annotations

import atexit
import contextlib
import os
import pickle
import signal
import subprocess
import sys
import threading
from collections.abc import Callable
from functools import partial
from multiprocessing import Pipe
from multiprocessing.connection import Connection
from typing import Any, TypeVar

from pipeline.errors import WorkerError
from pipeline.runtime.background import in_lasting_thread
from pipeline.runtime.child_main import STARTUP_LIMIT_S

T = TypeVar("T")

_STARTS = 3
# Time for a process that has closed its connection to exit; a busy machine may be slow.
_ENDS_WITHIN_S = 30.0


class CrashError(RuntimeError):
    """The child process died while it worked on an item."""


class ChildStartError(WorkerError):
    """The child process could not be started, which is no fault of an item."""


class Child:
    """Runs module-level functions in one persistent child process, with a time and a memory limit.

    The process starts with the first call, and again after it was killed. Calls from several
    threads are serialised. It never outlives its parent: an idle child exits when its connection is
    closed, a busy one is killed by the kernel (Linux) or by its own alarm after the time limit.
    """

    def __init__(self, memory_gib: float | None = None):
        """Start no process yet.

        Args:
            memory_gib: Limit of the child's address space in GiB (RLIMIT_AS, on Linux); `None` for
                no limit. Python with the decoders needs about 0.5 GiB.
        """
        self._memory_gib = memory_gib
        self._lock = threading.Lock()
        self._process: subprocess.Popen[bytes] | None = None
        self._connection: Connection | None = None
        atexit.register(self._kill)

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
            timeout_s: Timeout of the call in seconds, without the start of the process.
            about: The item, for error messages, e.g. a file name.
            what: Name of the child in error messages, e.g. `"decoder"`.

        Raises:
            TimeoutError: If the call took longer; the child was killed.
            MemoryError: If the call needed more than the memory limit; the child was replaced.
            CrashError: If the child died.
            ChildStartError: If no child can be started here.
            Exception: Any error of the function.
        """
        request = pickle.dumps((function, args, timeout_s), protocol=5)
        with self._lock:
            if self._process is not None and self._process.poll() is not None:
                self._kill()
            if self._process is None:
                self._start()
            try:
                assert self._connection is not None
                self._connection.send_bytes(request)
                reply = self._reply(timeout_s)
            except TimeoutError:
                self._kill()
                raise TimeoutError(
                    f"{about}: no result from the {what} within {timeout_s:g} s"
                ) from None
            except (EOFError, OSError):
                raise self._death_reason(about, what, timeout_s) from None
            except BaseException:
                # An interruption (Ctrl-C, a cancelled Ray task) may leave half a message in the
                # connection.
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

    def _start(self) -> None:
        """Start an interpreter with this one's module path, and wait until it is ready.

        It is started again if it is killed meanwhile, e.g. because memory is low.
        """
        environment = {
            **os.environ,
            "PYTHONPATH": os.pathsep.join(entry or os.getcwd() for entry in sys.path),
            # A worker uses one CPU; thread pools would also use up the address space.
            "OMP_NUM_THREADS": "1",
            "OPENBLAS_NUM_THREADS": "1",
        }
        program = [sys.executable, "-m", "pipeline.runtime.child_main"]
        name = f"the child process ({' '.join(program)})"
        for _ in range(_STARTS):
            ours, theirs = Pipe()
            arguments = [str(theirs.fileno()), str(self._memory_gib or 0), str(os.getpid())]
            start: Callable[[], Any] = partial(
                subprocess.Popen,
                program + arguments,
                stdin=subprocess.DEVNULL,
                env=environment,
                pass_fds=(theirs.fileno(),),
            )
            self._connection = ours
            try:
                with theirs:
                    self._process = in_lasting_thread(start).result()
            except OSError as error:
                raise ChildStartError(f"cannot start {' '.join(program)}: {error}") from error
            try:
                self._reply(STARTUP_LIMIT_S)
                return
            except (EOFError, OSError) as error:
                code = self._end(is_ending=not isinstance(error, TimeoutError))
                if code != -signal.SIGKILL or isinstance(error, TimeoutError):
                    raise ChildStartError(f"{name} did not start: exit code {code}") from error
        raise ChildStartError(f"{name} was killed while it started, {_STARTS} times in a row")

    def _reply(self, timeout_s: float) -> bytes:
        """The next message; the child's own alarm limits the time of a message that has begun."""
        assert self._connection is not None
        if not self._connection.poll(timeout_s):
            raise TimeoutError
        return self._connection.recv_bytes()

    def _end(self, *, is_ending: bool) -> int:
        """End the child and return its exit code.

        Args:
            is_ending: Whether it has closed its connection and is exiting.
        """
        process = self._process
        assert process is not None
        if is_ending:
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(_ENDS_WITHIN_S)
        self._kill()
        return process.returncode

    def _death_reason(self, about: str, what: str, timeout_s: float) -> Exception:
        """Exception that describes why the child died; also cleans up the child."""
        code = self._end(is_ending=True)
        if code >= 0:
            return CrashError(f"{about}: the {what} exited with status {code}")
        if -code == signal.SIGALRM:
            return TimeoutError(f"{about}: no result from the {what} within {timeout_s:g} s")
        name = signal.Signals(-code).name
        return CrashError(f"{about}: the {what} crashed with signal {-code} ({name})")

    def _kill(self) -> None:
        """Kill the child and reap it."""
        process, connection = self._process, self._connection
        self._process, self._connection = None, None
        if connection is not None:
            connection.close()
        if process is not None:
            process.kill()
            process.wait()
