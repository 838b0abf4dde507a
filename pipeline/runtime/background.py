"""Run work in a thread while the main thread handles signals.

The threads last as long as the process. The kernel's parent-death signal follows the thread that
started a process, so what such a thread starts (a decode child, a Ray) ends with this process and
not before.
"""

from __future__ import annotations

import queue
import threading
import time
from collections.abc import Callable, Generator, Iterator
from functools import partial
from typing import Any, ClassVar, TypeVar

from pipeline.runtime import stopping

T = TypeVar("T")

# Between two looks at the signals. Ray's native code replaces a handler while it starts. What is
# awaited so comes by a `Queue`: in Python 3.11 a `SimpleQueue` may wait without end after a signal.
_POLL_S = 0.02


class LastingThread(threading.Thread):
    """Runs one function after another, and never ends."""

    _parked: ClassVar[queue.SimpleQueue[LastingThread]] = queue.SimpleQueue()
    _busy: ClassVar[set[LastingThread]] = set()

    def __init__(self) -> None:
        super().__init__(name="tango-background", daemon=True)
        self._work: queue.SimpleQueue[Callable[[], Callable[[], None]]] = queue.SimpleQueue()

    @classmethod
    def start_on(cls, work: Callable[[], Callable[[], None]]) -> None:
        """Run `work` in a thread that has nothing to do, or in a new one.

        Args:
            work: Raises nothing. What it returns is called when the thread counts as idle again,
                and tells whoever waits.
        """
        try:
            thread = cls._parked.get_nowait()
        except queue.Empty:
            thread = cls()
            thread.start()
        cls._busy.add(thread)
        thread._work.put(work)

    @classmethod
    def is_busy(cls) -> bool:
        """Whether any of them is at work, so that the interpreter cannot end in order."""
        return bool(cls._busy)

    def run(self) -> None:
        """Work, for ever."""
        while True:
            tell = self._work.get()()
            self._busy.discard(self)
            tell()
            del tell  # it holds a result, or an error with the frames that it came through
            self._parked.put(self)


def is_lasting(thread: threading.Thread) -> bool:
    """Whether a thread ends with the process and not before."""
    return thread is threading.main_thread() or isinstance(thread, LastingThread)


def iterate(
    source: Callable[[], Iterator[T]],
    meanwhile: Callable[[], None] = lambda: None,
    *,
    ahead: int = 0,
) -> Generator[T]:
    """What an iterator gives, made and advanced in a lasting thread, one item at a time.

    When this generator is closed the iterator is, too, and its end awaited, unless a signal ends
    the process.

    Args:
        source: Makes the iterator.
        meanwhile: Called every few milliseconds while an item is awaited. If it raises, the
            iterator is left to itself.
        ahead: Items that are made before they are asked for; those that nobody takes are dropped,
            with their errors.

    Raises:
        Stopped: If a signal comes while the main thread waits.
        BaseException: Whatever the iterator raises.
    """
    wanted: queue.SimpleQueue[bool] = queue.SimpleQueue()
    given: queue.Queue[tuple[str, Any]] = queue.Queue()
    over = threading.Event()

    def serve() -> Callable[[], None]:
        iterator: Any = None
        last: tuple[str, Any] = ("end", None)
        try:
            while wanted.get() and not over.is_set():
                iterator = iterator if iterator is not None else iter(source())
                given.put(("item", next(iterator)))
        except StopIteration:
            pass
        except BaseException as error:
            last = ("error", error)
        try:
            if hasattr(iterator, "close"):
                iterator.close()
        except BaseException as error:
            last = ("not closed", error)
        return partial(given.put, last)

    LastingThread.start_on(serve)
    kind, value = "item", None
    try:
        for _ in range(ahead):
            wanted.put(True)
        while True:
            wanted.put(True)
            kind = "awaited"
            kind, value = _awaited(given, meanwhile=meanwhile)
            if kind in ("error", "not closed"):
                raise value
            if kind == "end":
                return
            yield value
    finally:
        over.set()
        wanted.put(False)  # one that is left to itself ends when it comes back
        while kind == "item" and not stopping.is_asked():
            kind, value = _awaited(given)
            if kind == "not closed":
                raise value


def within(seconds: float, work: Callable[[], T]) -> T:
    """The result of `work`, which runs in a lasting thread.

    Raises:
        TimeoutError: If there is none in time; the thread is left to itself.
        BaseException: Whatever `work` raises.
    """
    given: queue.Queue[tuple[str, Any]] = queue.Queue()

    def serve() -> Callable[[], None]:
        try:
            return partial(given.put, ("item", work()))
        except BaseException as error:
            return partial(given.put, ("error", error))

    LastingThread.start_on(serve)
    kind, value = _awaited(given, time.monotonic() + seconds)
    if kind == "error":
        raise value
    result: T = value
    return result


def _awaited(
    given: queue.Queue[tuple[str, Any]],
    deadline: float | None = None,
    meanwhile: Callable[[], None] = lambda: None,
) -> tuple[str, Any]:
    """The next thing a thread gives, with an ear for signals."""
    while True:
        stopping.raise_if_asked()
        stopping.keep_handlers()
        meanwhile()
        try:
            return given.get(timeout=_POLL_S)
        except queue.Empty:
            if deadline is not None and time.monotonic() > deadline:
                raise TimeoutError from None
