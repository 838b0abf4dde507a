"""What a full disk or a dead store does to a job: it waits, tries again, and stops; no clip fails.

A stage that meets such an error names it in its row (`store_fault`). `patient` holds these rows
back. When clip after clip meets one, it ends the attempt, waits, and runs the clips that are left
once more; after the last wait it raises `StoreError`. A clip that meets one again and again while
others succeed is at fault itself: it fails alone.
"""

from __future__ import annotations

import errno
import logging
from collections.abc import Callable, Generator, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, TypeVar

from pipeline.errors import StoreError
from pipeline.runtime import stopping
from pipeline.runtime.clock import SYSTEM_CLOCK, Clock
from pipeline.storage.objects import UnavailableError

if TYPE_CHECKING:
    from pipeline.plan import Plan
    from pipeline.rows import Row
    from pipeline.settings import Settings

logger = logging.getLogger(__name__)
T = TypeVar("T")

IN_A_ROW = 3
"""Different clips that meet a fault, with no success in between, before the job pauses."""

PAUSES_S = (5.0, 15.0, 40.0)
"""Waits between attempts; a success starts them again."""

_TRIES = 3  # of a clip while others succeed

# No room, or not to be written to; then: the disk or the server behind it has gone.
_ERRNOS = frozenset(
    getattr(errno, name)
    for name in (
        *("ENOSPC", "EDQUOT", "EROFS", "EFBIG"),
        *("EIO", "ENXIO", "ENODEV", "ESTALE", "EREMOTEIO", "ENOTCONN", "ESHUTDOWN", "EHOSTDOWN"),
        *("ECONNREFUSED", "ECONNRESET", "ECONNABORTED", "EPIPE", "ETIMEDOUT"),
        *("ENETDOWN", "ENETUNREACH", "ENETRESET", "EHOSTUNREACH"),
    )
    if hasattr(errno, name)
)


def store_fault(error: BaseException, where: str) -> str | None:
    """What is wrong with the store, in one line with its path; `None` if an error is another.

    Args:
        error: From reading or writing a file; what caused it is looked at, too.
        where: Path or URL that was read or written, for errors that do not name one.
    """
    seen: list[BaseException] = []
    current: BaseException | None = error
    while current is not None and current not in seen:
        seen.append(current)
        current = current.__cause__ or current.__context__
    if not any(
        isinstance(one, (StoreError, UnavailableError))
        or (isinstance(one, OSError) and one.errno in _ERRNOS)
        for one in seen
    ):
        return None
    text = " ".join(str(error).split()) or type(error).__name__
    return text[:1000] if where in text else f"{where}: {text}"[:1000]


@dataclass
class _Watch:
    """Which clips met a fault, and what succeeded since.

    Attributes:
        successes: Clips that did not meet one.
        first_met: Clip -> successes when it met its first fault.
        met_again: Clip -> faults since others succeeded.
        in_a_row: Clips that met one since the last success.
        pauses: Waits since the last success.
    """

    successes: int = 0
    first_met: dict[tuple[str, str], int] = field(default_factory=dict)
    met_again: dict[tuple[str, str], int] = field(default_factory=dict)
    in_a_row: set[tuple[str, str]] = field(default_factory=set)
    pauses: int = 0

    def succeed(self) -> None:
        """A clip did not meet a fault."""
        self.successes += 1
        self.in_a_row.clear()
        self.pauses = 0

    def is_alone(self, clip: tuple[str, str]) -> bool:
        """Note a fault of a clip; whether it is the clip that is at fault."""
        if self.successes == self.first_met.setdefault(clip, self.successes):
            self.in_a_row.add(clip)
            return False
        self.met_again[clip] = self.met_again.get(clip, 0) + 1
        return self.met_again[clip] >= _TRIES - 1


def patient(
    run_plan: Callable[[Plan, Settings], Iterator[Row]],
    plan: Plan,
    settings: Settings,
    clock: Clock = SYSTEM_CLOCK,
) -> Generator[Row, None, None]:
    """Run a plan; a store that is away for a while costs a wait and no clip.

    Args:
        run_plan: The executor; it gives one `rows.RESULT` per clip.
        plan: What to do.
        settings: For the executor.
        clock: Waits.

    Yields:
        One result per clip. Those with a `store_fault` are of clips that are at fault themselves.

    Raises:
        StoreError: If the store did not come back.
    """
    watch = _Watch()
    held: dict[tuple[str, str], Row] = {}
    left = plan
    while left.clips.num_rows:
        finished, fault = set(), None
        try:
            with _closed(run_plan(left, settings)) as results:
                for row in results:
                    clip = (row["benchmark"], row["video_id"])
                    if not row.get("store_fault"):
                        watch.succeed()
                    elif not watch.is_alone(clip):
                        held[clip], fault = row, row["store_fault"]
                        if len(watch.in_a_row) >= IN_A_ROW:
                            break
                        continue
                    finished.add(clip)
                    held.pop(clip, None)
                    yield row
        except StoreError:
            raise
        except Exception as error:
            fault = store_fault(error, "the store")
            if fault is None or not watch.pauses:  # in an attempt that follows a fault
                raise
        if len(finished) == left.clips.num_rows or (fault is None and not held):
            return  # what an executor kept to itself is found when answers are counted
        left = _without(left, finished, last=held)
        if watch.pauses == len(PAUSES_S):
            # Only clips that met it again while all others succeeded are at fault themselves.
            others = left.clips.num_rows - len(held)
            if len(watch.in_a_row) >= IN_A_ROW or not watch.successes or others:
                raise StoreError(f"{fault}; {_tried()}")
            yield from held.values()  # the last few, after others have succeeded
            return
        _pause(str(fault), watch.pauses, clock)
        watch.pauses += 1
        watch.in_a_row.clear()


@contextmanager
def _closed(results: Iterator[Row]) -> Iterator[Iterator[Row]]:
    """End the executor with the block, wherever its generator is."""
    try:
        yield results
    finally:
        if isinstance(results, Generator):
            results.close()


def insist(write: Callable[[], T], where: str, clock: Clock = SYSTEM_CLOCK) -> T:
    """Write something of the driver's own, with the same waits; a signal ends a wait.

    Raises:
        StoreError: If the store did not come back.
    """
    for attempt in range(len(PAUSES_S) + 1):
        try:
            return write()
        except Exception as error:
            fault = store_fault(error, where)
            if fault is None:
                raise
            if attempt == len(PAUSES_S):
                raise StoreError(f"{fault}; {_tried()}") from error
        with stopping.interruptible():
            _pause(fault, attempt, clock)
    raise AssertionError


def _pause(fault: str, attempt: int, clock: Clock) -> None:
    """Say what is wrong and wait."""
    logger.warning(
        "the store does not work (%s); trying again in %g s (%d of %d)",
        fault,
        PAUSES_S[attempt],
        attempt + 1,
        len(PAUSES_S),
    )
    clock.sleep(PAUSES_S[attempt])


def _tried() -> str:
    """How long it was waited for the store."""
    return f"it did not come back within {sum(PAUSES_S):g} s of waiting"


def _without(plan: Plan, finished: set[tuple[str, str]], last: dict[tuple[str, str], Any]) -> Plan:
    """The plan of the other clips; those that met a fault come last, so that others are tried."""
    names = list(
        zip(*(plan.clips[key].to_pylist() for key in ("benchmark", "video_id")), strict=True)
    )
    order = [i for i, name in enumerate(names) if name not in finished and name not in last]
    order += [i for i, name in enumerate(names) if name not in finished and name in last]
    return replace(plan, clips=plan.clips.take(order))
