"""Many files at once, each followed by what it makes possible."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from typing import Any

from jobs.fetch.hub import Hub
from jobs.fetch.stream import Download, OnBytes

_LOOK_EVERY_S = 0.2


def fetch_all(
    hub: Hub,
    sha: str,
    downloads: Sequence[Download],
    *,
    jobs: int,
    on_bytes: OnBytes,
    on_file: Callable[[Download], Callable[[], object] | None],
) -> None:
    """Fetch files, some at a time; the first error ends all of them.

    Args:
        hub: Where they are.
        sha: Commit.
        downloads: In the order in which they are begun.
        jobs: Files at once.
        on_bytes: Told what comes, from several threads.
        on_file: Called in this thread with every file that is in its place; returns what there is
            to do now, such as unpacking it, which one thread does for all.

    Raises:
        FetchError: The first one.
    """
    waiting: set[Future[Any]] = set()
    of: dict[Future[Any], Download] = {}
    pool, unpacker = ThreadPoolExecutor(jobs), ThreadPoolExecutor(1)
    try:
        for download in downloads:
            future = pool.submit(download.run, hub, sha, on_bytes)
            of[future] = download
            waiting.add(future)
        while waiting:
            # A signal is seen between two waits.
            done, waiting = wait(waiting, _LOOK_EVERY_S, FIRST_COMPLETED)
            for future in done:
                future.result()
                more = on_file(of[future]) if future in of else None
                if more is not None:
                    waiting.add(unpacker.submit(more))
    except BaseException as error:
        hub.stop.set()
        for each in (pool, unpacker):  # a signal does not wait for a connection
            each.shutdown(wait=isinstance(error, Exception), cancel_futures=True)
        raise
    pool.shutdown()
    unpacker.shutdown()
