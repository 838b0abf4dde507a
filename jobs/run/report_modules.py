"""What draws the report, imported while the job is at work.

Plots and tables take most of a second to import. The main thread of a driver only waits, so after
the first clip, for which nothing else has to wait either, there is time for it.
"""

from __future__ import annotations

from collections.abc import Callable

from pipeline.plan import Plan
from pipeline.rows import Result
from pipeline.runtime.background import LastingThread


class ReportModules:
    """An observer of a job that imports them beside it."""

    _begun = False

    def started(self, plan: Plan, finished: int) -> None:
        """See `Observer`."""

    def result(self, row: Result) -> None:
        """The first clip is through: import."""
        if not self._begun:
            self._begun = True
            LastingThread.start_on(_load)

    def stopped(self) -> None:
        """See `Observer`."""


def _load() -> Callable[[], None]:
    """Import them; whoever needs one that is missing says so."""
    try:
        import jobs.report.page
        import jobs.results.summary  # noqa: F401
    except ImportError:
        pass
    return lambda: None
