"""Threads beside a stage: read ahead, and write behind."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Generator, Iterable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import TypeVar

JobT = TypeVar("JobT")
DoneT = TypeVar("DoneT")


def done_ahead(
    jobs: Iterable[JobT],
    work: Callable[[JobT], DoneT],
    most: int,
    room: Callable[[JobT], int],
) -> Generator[tuple[JobT, DoneT | Exception]]:
    """Every job with its result, or with what went wrong; nothing but `work` leaves this thread.

    Args:
        jobs: Taken one by one, and each when at most `room` of them are ahead.
        work: Is called in the other thread, for one job at a time.
        most: Jobs ahead of the one that was given last, at most; 0 works in this thread.
        room: The same for when this job was the last one that was taken.
    """

    def result(job: JobT) -> DoneT | Exception:
        try:
            return work(job)
        except Exception as error:
            return error

    if most == 0:
        for job in jobs:
            yield job, result(job)
        return
    ahead: deque[tuple[JobT, Future[DoneT | Exception]]] = deque()
    thread = ThreadPoolExecutor(1, "tango-ahead")
    try:
        for job in jobs:
            ahead.append((job, thread.submit(result, job)))
            while len(ahead) > min(most, room(job)):
                first, done = ahead.popleft()
                yield first, done.result()
        while ahead:
            first, done = ahead.popleft()
            yield first, done.result()
    finally:
        thread.shutdown(cancel_futures=True)


class Writers:
    """Some threads for all files of a stage.

    Args:
        most: Files that are written at once; 0 writes each where it is begun.
    """

    def __init__(self, most: int) -> None:
        self.most = most
        self._threads = ThreadPoolExecutor(most, "tango-writer") if most else None

    def begin(self, work: Callable[[], None]) -> Future[None]:
        """Write a file as soon as a thread has time, in the order in which they are begun.

        Args:
            work: Writes it. Nothing that it uses may be changed until it has ended.

        Raises:
            Exception: Whatever `work` raises, if it is done here.
        """
        if self._threads is not None:
            return self._threads.submit(work)
        work()
        done: Future[None] = Future()
        done.set_result(None)
        return done
