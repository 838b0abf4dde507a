"""Lease of a run: one driver at a time, renewed while it works.

The lease with the highest number holds. To take one a driver creates the file with the next number,
which exactly one of several can do: on a disk by a hard link, in an object store by a conditional
PUT. To renew it the driver writes its own file again. The highest number stays when the lease is
given back, so a driver that stood still between two steps of a renewal finds at the next one that
it has lost its lease, also when the driver that took it has ended.

Listings may lag: numbers behind the highest that is listed are asked for one by one.
"""

from __future__ import annotations

import json
import logging
import re
import uuid
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass, fields, replace
from datetime import datetime

from pipeline.runtime import process
from pipeline.runtime.clock import SYSTEM_CLOCK, Clock
from pipeline.storage.files import Storage
from tango_core.errors import InputError

logger = logging.getLogger(__name__)

EXPIRES_S = 60.0
RENEWED_EVERY_S = 10.0
PATIENCE_S = EXPIRES_S + RENEWED_EVERY_S
"""After this wait the lease of a dead driver has expired."""
_ASKED_EVERY_S = 2.0
RELEASED = b'{"released": true}\n'
"""Content of a lease that its driver has given back."""
# A leading dot hides it from readers of the run.
_FILE = re.compile(r"\.lease-(\d+)\.json")
_FIRST_FORMAT = ".lease.json"  # in stores, by earlier versions


class LeaseError(InputError):
    """Another driver works on the run."""


@dataclass(frozen=True)
class Holder:
    """Who has a lease, as its file says.

    Attributes:
        owner: Random; no two drivers share it.
        host: Name of the machine.
        machine: Changes when the machine starts again, and differs between containers; process
            ids are compared only where it is the same. Empty where it is not known.
        pid: Of the driver.
        taken_at: ISO 8601, UTC.
        renewed_at: ISO 8601, UTC.
    """

    owner: str
    host: str
    machine: str
    pid: int
    taken_at: str
    renewed_at: str


class Lease:
    """The right to write to a run; ask `raise_if_lost` before every write.

    On a disk a lease has expired by the dates in it, so machines that share the directory need
    clocks that agree to within some seconds; in a store by the store's own clock.

    Args:
        storage: The run directory.
        clock: For dates, and for waiting.

    Raises:
        ValueError: If the store has no conditional writes.
    """

    def __init__(self, storage: Storage, clock: Clock = SYSTEM_CLOCK) -> None:
        if storage.store is not None and not storage.store.has_conditions:
            raise InputError(
                f"--output {storage.location}: two drivers could not be told apart there, because "
                "no conditional writes are known for this kind of store; use s3://, gs:// or a "
                "shared disk"
            )
        self.storage = storage
        self._clock = clock
        self._number = 0
        self._lost: LeaseError | None = None
        now = clock.now().isoformat()
        self._me = Holder(
            uuid.uuid4().hex, process.host(), process.machine(), process.pid(), now, now
        )

    def take(self, *, steal: bool = False) -> None:
        """Get it.

        Args:
            steal: Whether a living driver loses it.

        Raises:
            LeaseError: If a living driver has it.
        """
        while True:
            last = self._last()
            holder = self._holder(last)
            if holder and not steal and (left_s := self._left_s(last, holder)) >= 0:
                raise LeaseError(
                    f"{self.storage.location}: {self._named(holder)} works on this run; wait for "
                    "it, or take the run over with --steal (a dead driver's lease ends by itself "
                    f"in {left_s:.0f} s)"
                )
            if holder and steal:
                logger.warning("the lease of %s is stolen", self._named(holder))
            now = self._clock.now().isoformat()
            self._me = replace(self._me, taken_at=now, renewed_at=now)
            try:
                self.storage.create_file(_name(last + 1), self._content())
            except FileExistsError:  # another driver took it in the meantime; look again
                continue
            self._number = last + 1
            return

    def renew(self) -> None:
        """Say that this driver lives.

        Raises:
            LeaseError: If another driver has taken it.
        """
        self.raise_if_lost()
        if not self._is_mine() or self.storage.exists(_name(self._number + 1)):
            holder = self._holder(self._last())
            by = f" by {self._named(holder)}" if holder else ""
            raise LeaseError(
                f"{self.storage.location}: this run was taken over{by}; this driver ends, what it "
                "has written is kept"
            )
        self._me = replace(self._me, renewed_at=self._clock.now().isoformat())
        self.storage.write(_name(self._number), self._content())

    def renew_beside(self) -> None:
        """One renewal beside the work; a disk that fails may be back at the next one."""
        try:
            self.renew()
        except LeaseError as error:
            self._lost = error
        except OSError as error:
            logger.warning("the lease of the run could not be renewed: %s", error)

    def raise_if_lost(self) -> None:
        """Raise what `renew_beside` found; costs nothing.

        Raises:
            LeaseError: If another driver has taken the run.
        """
        if self._lost:
            raise self._lost

    def release(self) -> None:
        """Give it back; does nothing if another driver has it."""
        if not self._is_mine():
            return
        self.storage.write(_name(self._number), RELEASED)
        for number in self._numbers():  # lower: of drivers that are dead or have lost theirs
            if number < self._number:
                with suppress(FileNotFoundError):
                    self.storage.delete(_name(number))

    def living(self) -> Holder | None:
        """The driver that may be at work; `None` if there is none. Nothing is written."""
        last = self._last()
        holder = self._holder(last)
        return holder if holder and self._left_s(last, holder) >= 0 else None

    def _numbers(self) -> list[int]:
        """Of the lease files that are listed."""
        found = (_FILE.fullmatch(file.base_name) for file in self.storage.files())
        return [int(one[1]) for one in found if one]

    def _last(self) -> int:
        last = max(self._numbers(), default=0)
        while self.storage.exists(_name(last + 1)):
            last += 1
        return last

    def _holder(self, number: int) -> Holder | None:
        """Who has a lease; `None` if it is not there, was given back, or cannot be read."""
        try:
            content = json.loads(self.storage.read(_name(number)))
            return Holder(**{field.name: content[field.name] for field in fields(Holder)})
        except (FileNotFoundError, ValueError, TypeError, KeyError):
            return None

    def _is_mine(self) -> bool:
        holder = self._holder(self._number)
        return holder is not None and holder.owner == self._me.owner

    def _content(self) -> bytes:
        return json.dumps(asdict(self._me)).encode()

    def _left_s(self, number: int, holder: Holder) -> float:
        """Seconds until a lease expires, negative if it has; that of a dead process here has."""
        same = holder.machine and holder.machine == self._me.machine
        if same and not process.is_running(holder.pid):
            return -1.0
        store = self.storage.store
        age_s = store.age_s(self.storage.path(_name(number))) if store else None
        return EXPIRES_S - (self._age_s(holder.renewed_at) if age_s is None else age_s)

    def _named(self, holder: Holder) -> str:
        """A driver, for messages."""
        return (
            f"the driver on host {holder.host}, pid {holder.pid} (since "
            f"{self._age_s(holder.taken_at):.0f} s, last seen "
            f"{self._age_s(holder.renewed_at):.0f} s ago)"
        )

    def _age_s(self, moment: str) -> float:
        """Seconds since a time in a lease; a time that nobody can read is long ago."""
        try:
            return max(0.0, (self._clock.now() - datetime.fromisoformat(moment)).total_seconds())
        except (ValueError, TypeError):
            return float("inf")


@contextmanager
def held(
    lease: Lease,
    *,
    steal: bool = False,
    waits: bool = False,
    every_s: float = RENEWED_EVERY_S,
    clock: Clock = SYSTEM_CLOCK,
) -> Iterator[Lease]:
    """Take a lease, renew it while the block runs, and release it however the block ends.

    Args:
        lease: Of a run.
        steal: Whether a living driver loses it.
        waits: Whether to wait until the lease of a dead driver has expired: a scheduler starts the
            next attempt within seconds, often on another machine, where only time shows that the
            driver before is dead.
        every_s: Seconds between two renewals.
        clock: For the wait and the renewals.

    Raises:
        LeaseError: If a living driver has it.
    """
    started, is_logged = clock.monotonic(), False
    while True:
        try:
            lease.take(steal=steal)
            break
        except LeaseError as error:
            if not waits or clock.monotonic() - started >= PATIENCE_S:
                raise
            if not is_logged:
                logger.info("waiting for up to %.0f s: %s", PATIENCE_S, error)
                is_logged = True
            clock.sleep(_ASKED_EVERY_S)
    renewals = clock.repeat(lease.renew_beside, every_s, "tango-lease")
    renewals.start()
    try:
        yield lease
    finally:
        renewals.stop()
        with suppress(OSError):  # it expires
            lease.release()


def _name(number: int) -> str:
    return f".lease-{number:05d}.json" if number else _FIRST_FORMAT
