"""Jobs done in order in one other thread, some of them before their results are asked for."""

from __future__ import annotations

import queue
from collections import deque
from collections.abc import Callable, Generator, Iterable, Iterator
from contextlib import closing
from typing import TypeVar

from pipeline.runtime.background import iterate

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
    if most == 0:
        for job in jobs:
            yield job, _result(work, job)
        return
    given: queue.SimpleQueue[tuple[JobT] | None] = queue.SimpleQueue()

    def results() -> Iterator[DoneT | Exception]:
        while (one := given.get()) is not None:
            yield _result(work, *one)

    ahead: deque[JobT] = deque()
    with closing(iterate(results, ahead=most)) as done:
        try:
            for job in jobs:
                given.put((job,))
                ahead.append(job)
                while len(ahead) > min(most, room(job)):
                    yield ahead.popleft(), next(done)
            while ahead:
                yield ahead.popleft(), next(done)
        finally:
            given.put(None)  # before `done` is closed, which waits for the other thread


def _result(work: Callable[[JobT], DoneT], job: JobT) -> DoneT | Exception:
    """What came of a job."""
    try:
        return work(job)
    except Exception as error:
        return error
