"""Stop a process on a signal: deferred handlers and cleanup.

A signal handler raises `Stopped` wherever a job can be interrupted (imports, planning, drawing,
uploading). Inside `deferred()` it only records the signal, and the loop calls `raise_if_asked()`
between two steps. A second signal has no effect. A thread ends the process if it still runs after
`ENDS_WITHIN_S`, because the main thread may be blocked by a disk or by native code.

To register a function that must run before the process ends, such as marking a run as killed::

    with at_stop(lambda name: client.set_terminated(run_id, "KILLED")):
        ...

Functions run in reverse order, all within `HOOKS_WITHIN_S`, and only after a signal.
"""

from __future__ import annotations

import logging
import os
import signal
import socket
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, suppress
from typing import NoReturn

from pipeline.runtime.process import end_descendants

logger = logging.getLogger(__name__)

SIGNALS = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)
ENDS_WITHIN_S = 8.0
HOOKS_WITHIN_S = 2.0

Hook = Callable[[str], object]
"""Called with the name of the signal, e.g. `SIGTERM`, in a separate thread."""


class Stopped(BaseException):
    """A signal asked this process to end; like `KeyboardInterrupt`, no `Exception`.

    Attributes:
        signum: The first received signal.
    """

    def __init__(self, signum: int) -> None:
        super().__init__(signal.Signals(signum).name)
        self.signum = signum

    @property
    def name(self) -> str:
        """Name of the signal."""
        return signal.Signals(self.signum).name


class _State:
    """State of the signal handlers of this process."""

    def __init__(self) -> None:
        self.asked: int | None = None
        self.depth = 0
        self.raised = False
        self.installed: tuple[signal.Signals, ...] = ()
        self.hooks: list[Hook] = []


_state = _State()


def _on_signal(signum: int, frame: object) -> None:
    """Record the first signal; raise unless deferred."""
    if _state.asked is None:
        _state.asked = signum
    if not _state.depth:
        raise_if_asked()


def raise_if_asked() -> None:
    """Raise `Stopped` once if a signal was received.

    Raises:
        Stopped: In the main thread, the first time after a signal.
    """
    if _state.asked is None or _state.raised:
        return
    if threading.current_thread() is threading.main_thread():
        _state.raised = True
        raise Stopped(_state.asked)


def is_asked() -> bool:
    """Whether a signal was received."""
    return _state.asked is not None


@contextmanager
def _at_depth(depth: int) -> Iterator[None]:
    """Run a block of the main thread inside so many deferred blocks; outside of them, raise."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before, _state.depth = _state.depth, depth
    try:
        if not depth:
            raise_if_asked()
        yield
    finally:
        _state.depth = before
    if not before:
        raise_if_asked()


def deferred() -> AbstractContextManager[None]:
    """While active, a signal does not interrupt the block, which calls `raise_if_asked`.

    A received signal is raised when the block ends.
    """
    return _at_depth(_state.depth + 1)


def interruptible() -> AbstractContextManager[None]:
    """Inside `deferred`, a part that a signal may interrupt, such as a long wait."""
    return _at_depth(0)


@contextmanager
def at_stop(hook: Hook) -> Iterator[None]:
    """While active, call `hook` if a signal ends this process; see the module."""
    _state.hooks.append(hook)
    try:
        yield
    finally:
        # After a signal the hook stays: `Stopped` is raised through here before hooks are run.
        if _state.asked is None:
            _state.hooks.remove(hook)


def run_hooks() -> None:
    """Run the functions registered by `at_stop`, the newest first, for at most `HOOKS_WITHIN_S`."""
    name = signal.Signals(_state.asked or signal.SIGTERM).name
    hooks, _state.hooks = _state.hooks[::-1], []
    done = threading.Event()

    def run() -> None:
        for hook in hooks:
            try:
                hook(name)
            except Exception as error:
                logger.warning("at the stop: %s", " ".join(str(error).split()))
        done.set()

    if hooks:
        threading.Thread(target=run, name="tango-at-stop", daemon=True).start()
        done.wait(HOOKS_WITHIN_S)


def keep_handlers() -> None:
    """Install the handlers again; Ray's native code replaces that of SIGTERM while it starts.

    Only the main thread can do that.
    """
    if threading.current_thread() is threading.main_thread():
        for signum in _state.installed:
            signal.signal(signum, _on_signal)


@contextmanager
def handled(interrupt_message: Callable[[Stopped], str]) -> Iterator[None]:
    """While active, handle SIGTERM, SIGINT and SIGHUP; after one of them the process ends here.

    Signals that are already ignored (`nohup`, a shell's `&`) stay ignored.

    Args:
        interrupt_message: Returns the line for standard error.
    """
    global _state
    if _state.installed or threading.current_thread() is not threading.main_thread():
        yield
        return
    _state = _State()
    before = {signum: signal.getsignal(signum) for signum in SIGNALS}
    _state.installed = tuple(s for s in SIGNALS if before[s] is not signal.SIG_IGN)
    ours, theirs = socket.socketpair()
    theirs.setblocking(False)
    previous = signal.set_wakeup_fd(theirs.fileno(), warn_on_full_buffer=False)
    watch = threading.Thread(
        target=_watch, args=(ours, interrupt_message), name="tango-stop", daemon=True
    )
    watch.start()
    keep_handlers()
    try:
        yield
    except BaseException as error:  # a library may have converted `Stopped` to another exception
        if _state.asked is None:
            raise
        _stop(error if isinstance(error, Stopped) else Stopped(_state.asked), interrupt_message)
    finally:
        installed, _state.installed = _state.installed, ()
        for signum in installed:
            signal.signal(signum, before[signum])
        signal.set_wakeup_fd(previous)
        theirs.close()
        watch.join()


def leave(code: int) -> NoReturn:
    """Exit immediately and kill all descendants.

    Threads in native code or in Ray could block or abort a normal exit of the interpreter.
    """
    for stream in (sys.stdout, sys.stderr):
        with suppress(OSError, ValueError):  # the terminal may be gone
            stream.flush()
    end_descendants()
    os._exit(code)


def _stop(stopped: Stopped, interrupt_message: Callable[[Stopped], str]) -> NoReturn:
    """Run the hooks, print the last line and exit with the signal's code, as in shells."""
    run_hooks()
    with suppress(OSError):
        os.write(2, f"{interrupt_message(stopped)}\n".encode(errors="replace"))
    leave(128 + stopped.signum)


def _watch(signals: socket.socket, interrupt_message: Callable[[Stopped], str]) -> None:
    """Wait for a signal, then end the process if the main thread does not within `ENDS_WITHIN_S`.

    The interpreter's C handler writes the signal number to the socket at once, even while the main
    thread is in native code, where no Python handler runs.
    """
    wanted = set(map(int, _state.installed))
    with signals:
        while (received := signals.recv(1)) and received[0] not in wanted:
            pass
        if not received:
            return
        deadline = time.monotonic() + ENDS_WITHIN_S
        while (left := deadline - time.monotonic()) > 0:
            signals.settimeout(left)
            with suppress(TimeoutError):
                if not signals.recv(64):  # the end of `handled`
                    return
        _state.asked = _state.asked or received[0]
        _stop(Stopped(received[0]), interrupt_message)
