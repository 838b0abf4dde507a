"""A bound on how often one clip may kill its worker.

Ray restarts an actor that died and repeats what it was doing, without limit. That is right for a
lost node and wrong for a clip that crashes the process each time (a native fault, the kernel's
out-of-memory killer): such a job would never end. So every stage that holds a model reports to a
ledger before it starts on a clip and after it is done with it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from typing import Protocol

from pipeline.errors import DeviceError
from pipeline.rows import Row, failed

MAX_ATTEMPTS = 3


class Ledger(Protocol):
    """Counts the attempts at clips; outlives the workers."""

    def begin(self, key: str) -> int:
        """How many attempts at `key` there have been, this one included."""
        ...

    def end(self, key: str) -> None:
        """The attempt came back, with success or without."""
        ...

    def note(self, key: str, reason: str) -> None:
        """Say why the process ends during this attempt."""
        ...

    def why(self, key: str) -> str | None:
        """Why a process ended during the last attempt that said so."""
        ...


class AttemptLedger:
    """A ledger in memory; lives with the driver."""

    def __init__(self) -> None:
        self._begun: Counter[str] = Counter()
        self._reasons: dict[str, str] = {}

    def begin(self, key: str) -> int:
        """See `Ledger`."""
        self._begun[key] += 1
        return self._begun[key]

    def end(self, key: str) -> None:
        """See `Ledger`."""
        self._begun.pop(key, None)
        self._reasons.pop(key, None)

    def note(self, key: str, reason: str) -> None:
        """See `Ledger`."""
        self._reasons[key] = reason

    def why(self, key: str) -> str | None:
        """See `Ledger`."""
        return self._reasons.get(key)


class BoundedAttempts:
    """Runs a stage on rows, and gives up a clip that killed the process too often.

    Args:
        stage: Turns a row into a row; passes failed rows on.
        failure: Status of a row that is given up.
        ledger: Shared by all workers of the stage.
        where: Which GPU of which host this is, for whoever must look after it.
    """

    def __init__(
        self, stage: Callable[[Row], Row], failure: str, ledger: Ledger, where: str = ""
    ) -> None:
        self._where = where
        self._stage = stage
        self._failure = failure
        self._ledger = ledger

    def __call__(self, row: Row) -> Row:
        """One attempt at a clip.

        Raises:
            DeviceError: If the process must end; the ledger knows why.
        """
        key = "|".join((self._failure, row["benchmark"], row["video_id"]))
        if self._ledger.begin(key) > MAX_ATTEMPTS:
            reason = f"the worker process died {MAX_ATTEMPTS} times on this clip"
            if (why := self._ledger.why(key)) is not None:
                reason += f"; the last time because of {why}"
            row = failed(row, self._failure, reason)
        try:
            done = self._stage(row)
        except DeviceError as error:
            self._ledger.note(key, f"{error} ({self._where})" if self._where else str(error))
            raise
        self._ledger.end(key)
        return done
