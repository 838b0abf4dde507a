"""Who is told of a job while it is at work: the terminal, MLflow, whoever reads JSON."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Protocol

from pipeline.plan import Plan
from pipeline.rows import Result


class Observer(Protocol):
    """Is told of a job; must be quick and must not raise."""

    def started(self, plan: Plan, finished: int) -> None:
        """The job begins.

        Args:
            plan: What it will do.
            finished: Clips that earlier attempts finished.
        """
        ...

    def result(self, row: Result) -> None:
        """A clip is finished (`rows.RESULT`)."""
        ...

    def stopped(self) -> None:
        """No more clips come, whatever the reason."""
        ...


@contextmanager
def observed(
    observers: Sequence[Observer], plan: Plan, finished: int
) -> Iterator[Callable[[Result], None]]:
    """Tell all observers of the start and the end; gives the function that tells a result."""

    def tell(row: Result) -> None:
        for observer in observers:
            observer.result(row)

    for observer in observers:
        observer.started(plan, finished)
    try:
        yield tell
    finally:
        for observer in observers:
            observer.stopped()
