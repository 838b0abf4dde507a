"""Files that are written by other threads, while the thread that made them goes on."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field

from pipeline.runtime.background import LastingThread


@dataclass(frozen=True, eq=False)
class Writing:
    """A file that is being written, or waits for a thread that has time.

    Attributes:
        work: Writes it.
    """

    work: Callable[[], None]
    _over: threading.Event = field(default_factory=threading.Event)
    _errors: list[Exception] = field(default_factory=list)

    @property
    def is_over(self) -> bool:
        """Whether it is written, or cannot be."""
        return self._over.is_set()

    def run(self) -> None:
        """Write it, and tell whoever waits."""
        try:
            self.work()
        except Exception as error:
            self._errors.append(error)
        self._over.set()

    def wait(self) -> None:
        """Return when it is written; may be called again.

        Raises:
            Exception: Whatever the writing raised.
        """
        self._over.wait()
        if self._errors:
            raise self._errors[0]


class Writers:
    """Some threads for all files of a stage.

    Args:
        most: Files that are written at once; 0 writes each where it is begun.
    """

    def __init__(self, most: int) -> None:
        self.most = most
        self._lock = threading.Lock()
        self._waiting: deque[Writing] = deque()
        self._threads = 0

    def begin(self, work: Callable[[], None]) -> Writing:
        """Write a file as soon as a thread has time, in the order in which they are begun.

        Args:
            work: Writes it. Nothing that it uses may be changed until it has ended.

        Raises:
            Exception: Whatever `work` raises, if it is done here.
        """
        writing = Writing(work)
        if self.most == 0:
            writing.run()
            writing.wait()
            return writing
        with self._lock:
            self._waiting.append(writing)
            if self._threads == self.most:
                return writing
            self._threads += 1
        LastingThread.start_on(self._serve)
        return writing

    def _serve(self) -> Callable[[], None]:
        """Write until nothing waits."""
        while True:
            with self._lock:
                if not self._waiting:
                    self._threads -= 1
                    return lambda: None
                writing = self._waiting.popleft()
            writing.run()
            del writing  # it holds what was written
