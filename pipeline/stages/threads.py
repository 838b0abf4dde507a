"""Background threads of a stage: read inputs ahead, and write outputs."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Generator, Iterable
from concurrent.futures import Future, ThreadPoolExecutor
from functools import partial
from typing import TypeVar

JobT = TypeVar("JobT")
DoneT = TypeVar("DoneT")


def done_ahead(
    jobs: Iterable[JobT],
    work: Callable[[JobT], DoneT],
    most: int,
) -> Generator[tuple[JobT, Future[DoneT]]]:
    """Yield every job with its future result, computing results in a background thread.

    Args:
        jobs: The jobs; iterated in the calling thread.
        work: Called in the background thread, for one job at a time.
        most: Maximum number of jobs to start before the previous one is yielded; 0 calls `work` in
            this thread.
    """
    if most == 0:
        for job in jobs:
            yield job, _now(partial(work, job))
        return
    ahead: deque[tuple[JobT, Future[DoneT]]] = deque()
    thread = ThreadPoolExecutor(1, "tango-ahead")
    try:
        for job in jobs:
            ahead.append((job, thread.submit(work, job)))
            while len(ahead) > most:
                yield ahead.popleft()
        yield from ahead
    finally:
        thread.shutdown(cancel_futures=True)


class Writers:
    """Thread pool that writes the files of a stage.

    Args:
        most: Number of threads; 0 writes in the calling thread.
    """

    def __init__(self, most: int) -> None:
        self.most = most
        self._threads = ThreadPoolExecutor(most, "tango-writer") if most else None

    def begin(self, work: Callable[[], None]) -> Future[None]:
        """Submit a write; its data must not change until it has finished.

        Raises:
            Exception: Errors of `work`, if it is called in this thread.
        """
        if self._threads is not None:
            return self._threads.submit(work)
        done = _now(work)
        done.result()
        return done


def _now(work: Callable[[], DoneT]) -> Future[DoneT]:
    """Call a function in this thread; its result or error is in the future."""
    done: Future[DoneT] = Future()
    try:
        done.set_result(work())
    except Exception as error:
        done.set_exception(error)
    return done
