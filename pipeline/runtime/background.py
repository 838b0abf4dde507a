"""Run work in threads: beside a main thread that handles signals, and beside a stage."""

from __future__ import annotations

import os
import time
from collections import deque
from collections.abc import Callable, Generator, Iterable, Iterator
from concurrent.futures import Executor, Future, ThreadPoolExecutor
from functools import cache
from typing import Any, TypeVar, cast
from weakref import WeakSet

from pipeline.runtime import stopping

T = TypeVar("T")
JobT = TypeVar("JobT")

# Interval at which a waiting main thread checks for signals, because Ray's native code replaces a
# handler while it starts.
_POLL_S = 0.02
_END: Any = object()
_submitted: WeakSet[Future[Any]] = WeakSet()


def is_busy() -> bool:
    """Whether any background work is unfinished, so that the interpreter cannot end normally."""
    return not all(work.done() for work in list(_submitted))


def iterate(
    source: Callable[[], Iterator[T]], meanwhile: Callable[[], None] = lambda: None
) -> Generator[T]:
    """Yield the items of an iterator that is created and advanced in another thread.

    Closing this generator closes the iterator and waits for that, unless a signal ends the process.

    Args:
        source: Creates the iterator.
        meanwhile: Called every few milliseconds while waiting for an item. If it raises, the
            iterator is closed later, when its current step returns.

    Raises:
        Stopped: If a signal arrives while the main thread waits.
        BaseException: Any error of the iterator.
    """
    worker = ThreadPoolExecutor(1, "tango-background")
    iterator: Iterator[T] | None = None

    def step() -> T:
        nonlocal iterator
        iterator = iter(source()) if iterator is None else iterator
        return cast("T", next(iterator, _END))

    def close() -> None:
        if isinstance(iterator, Generator):
            iterator.close()

    try:
        while True:
            waiting = _submit(worker, step)
            item = _result(waiting, meanwhile)
            if item is _END:
                return
            yield item
    finally:
        closing = _submit(worker, close)
        worker.shutdown(wait=False)
        if waiting.done() and not stopping.is_asked():
            _result(closing)


def within(seconds: float, work: Callable[[], T]) -> T:
    """Call `work` in a lasting thread and return its result; see `in_lasting_thread`.

    Raises:
        TimeoutError: If there is no result in time; the thread is abandoned.
        BaseException: Any error of `work`.
    """
    return _result(in_lasting_thread(work), deadline=time.monotonic() + seconds)


def in_lasting_thread(work: Callable[[], T]) -> Future[T]:
    """Call `work` in a thread that lasts as long as this process.

    The kernel's parent-death signal follows the thread that started a process, so processes that
    such a thread starts (a decode child, Ray) end with this process and not before.
    """
    return _submit(_lasting_threads(os.getpid()), work)


@cache
def _lasting_threads(pid: int) -> ThreadPoolExecutor:
    """Threads of this process; a forked process needs its own."""
    return ThreadPoolExecutor(32, "tango-lasting")


def _submit(threads: ThreadPoolExecutor, work: Callable[[], T]) -> Future[T]:
    future = threads.submit(work)
    _submitted.add(future)
    return future


def _result(
    future: Future[T], meanwhile: Callable[[], None] = lambda: None, deadline: float | None = None
) -> T:
    """Wait for a result, checking for signals."""
    while True:
        stopping.raise_if_asked()
        stopping.keep_handlers()
        meanwhile()
        try:
            return future.result(_POLL_S)
        except TimeoutError:
            if future.done():  # the work's own error, or a result that came just now
                return future.result()
            if deadline is not None and time.monotonic() > deadline:
                raise


def done_ahead(
    jobs: Iterable[JobT],
    work: Callable[[JobT], T],
    most: int,
) -> Generator[tuple[JobT, Future[T]]]:
    """Yield every job with its future result, computing results in a background thread.

    Args:
        jobs: The jobs; iterated in the calling thread.
        work: Called in the background thread, for one job at a time.
        most: Maximum number of jobs to start before the previous one is yielded; 0 calls `work` in
            this thread.
    """
    ahead: deque[tuple[JobT, Future[T]]] = deque()
    thread = threads(min(most, 1), "tango-ahead")
    try:
        for job in jobs:
            ahead.append((job, thread.submit(work, job)))
            while len(ahead) > most:
                yield ahead.popleft()
        yield from ahead
    finally:
        thread.shutdown(cancel_futures=True)


class _Inline(Executor):
    """Calls functions in the calling thread; their results or errors are in futures."""

    def submit(self, fn: Callable[..., T], /, *args: Any, **kwargs: Any) -> Future[T]:
        done: Future[T] = Future()
        try:
            done.set_result(fn(*args, **kwargs))
        except Exception as error:
            done.set_exception(error)
        return done


def threads(most: int, name: str) -> Executor:
    """A pool of threads with a name; 0 threads call functions in the calling thread."""
    return ThreadPoolExecutor(most, name) if most else _Inline()
