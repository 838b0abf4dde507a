"""Limit how often one clip may kill its worker.

Ray restarts dead actors and repeats their work without limit. For a clip that crashes the process
every time (native crash, out-of-memory killer), a job would never end. So every stage that holds a
model reports to a ledger before and after it processes a clip.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator

from pipeline.clips import Clip
from pipeline.errors import DeviceError
from pipeline.metrics import Record, StageBoard, Stream

MAX_ATTEMPTS = 3


class AttemptLedger:
    """Counts the attempts at clips; lives with the driver and outlives the workers."""

    def __init__(self) -> None:
        super().__init__()
        self._begun: Counter[str] = Counter()
        self._reasons: dict[str, str] = {}

    def begin(self, key: str) -> int:
        """Count an attempt at `key`; returns the number of attempts including this one."""
        self._begun[key] += 1
        return self._begun[key]

    def end(self, key: str) -> None:
        """Record that an attempt has returned, with or without success."""
        self._begun.pop(key, None)
        self._reasons.pop(key, None)

    def note(self, key: str, reason: str) -> None:
        """Record why the process ends during this attempt."""
        self._reasons[key] = reason

    def why(self, key: str) -> str | None:
        """The last reason recorded with `note`; `None` for none."""
        return self._reasons.get(key)


class JobLedger(AttemptLedger, StageBoard):
    """What the workers of a job report to their driver, in one actor, which starts in a second.

    Its process imports this module, so it imports little: neither torch nor Ray Data.
    """


class BoundedAttempts:
    """Runs a stage on rows, and gives up a clip that killed the process too often.

    If a process died while it processed several clips, the cause is unknown, so each of these clips
    is processed alone in further attempts.

    Args:
        stage: Function on a stream of clips (`metrics.stream_of`); passes failed clips on.
        failure: Status of clips that are given up.
        ledger: Ledger shared by all workers of the stage.
        where: Host and GPU, for messages.
    """

    def __init__(self, stage: Stream, failure: str, ledger: AttemptLedger, where: str = "") -> None:
        self._where = where
        self._stage = stage
        self._failure = failure
        self._ledger = ledger

    def __call__(self, rows: Iterable[Clip]) -> Iterator[Record]:
        """Make one attempt at every clip.

        Raises:
            DeviceError: If the process must end; the ledger knows why.
        """
        waiting = iter(rows)
        suspects: list[Clip] = []

        def unsuspected() -> Iterator[Clip]:
            for row in waiting:
                attempts = self._ledger.begin(self._key(row))
                if attempts > 1:
                    suspects.append(row if attempts <= MAX_ATTEMPTS else self._given_up(row))
                    return
                yield row

        yield from self._attempt(unsuspected())
        while suspects:
            yield from self._attempt([suspects.pop()])
            yield from self._attempt(unsuspected())

    def _given_up(self, row: Clip) -> Clip:
        """The clip, failed because it killed the process too often."""
        reason = f"the worker process died {MAX_ATTEMPTS} times on this clip"
        if why := self._ledger.why(self._key(row)):
            reason += f"; the last time because of {why}"
        return row.failed(self._failure, reason)

    def _attempt(self, rows: Iterable[Clip]) -> Iterator[Record]:
        """Run rows through the stage, and end the attempts of those that return."""
        inside: dict[str, None] = {}

        def taken() -> Iterator[Clip]:
            for row in rows:
                inside[self._key(row)] = None
                yield row

        try:
            for done in self._stage(taken()):
                key = self._key(done)
                self._ledger.end(key)
                inside.pop(key, None)
                yield done
        except DeviceError as error:
            for key in inside:
                self._ledger.note(key, f"{error} ({self._where})" if self._where else str(error))
            raise

    def _key(self, row: Record) -> str:
        """Ledger key of a clip in this stage."""
        return "|".join((self._failure, *row.name))
