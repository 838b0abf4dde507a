"""Lease of a run directory, so that only one driver writes to it at a time.

Lease files are numbered and the highest number is valid. To take the lease, a driver creates the
file with the next number, which only one driver can do: on a disk by a hard link, in an object
store by a conditional PUT. To renew it, the driver rewrites its own file. A released lease keeps
its file, so a driver that was paused during a renewal notices at the next one that it lost the
lease, even if the driver that took it has ended since.

Listings of a store may be out of date, so numbers above the highest listed one are probed one by
one.
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
"""Time after which the lease of a dead driver has certainly expired."""
_RETRY_EVERY_S = 2.0
RELEASED = b'{"released": true}\n'
"""Content of the file of a released lease."""
# The leading dot hides the file from programs that read the run.
_FILE = re.compile(r"\.lease-(\d+)\.json")


class LeaseError(InputError):
    """Another driver holds the lease of the run."""


@dataclass(frozen=True)
class Holder:
    """The driver that holds a lease, as recorded in the lease file.

    Attributes:
        owner: Random id of the driver.
        host: Name of the machine.
        machine: Id of this boot of the machine or container; process ids are compared only if it
            is the same. Empty if unknown.
        pid: Process id of the driver.
        taken_at: Time when the lease was taken, ISO 8601, UTC.
        renewed_at: Time of the last renewal, ISO 8601, UTC.
    """

    owner: str
    host: str
    machine: str
    pid: int
    taken_at: str
    renewed_at: str


class Lease:
    """The exclusive right to write to a run; call `raise_if_lost` before every write.

    On a disk, expiry is computed from the dates in the lease file, so machines that share the
    directory need clocks that agree to within some seconds. In an object store the store's own
    clock is used.

    Args:
        storage: The run directory.
        clock: Clock for dates and waiting.

    Raises:
        InputError: If the store has no conditional writes.
    """

    def __init__(self, storage: Storage, clock: Clock = SYSTEM_CLOCK) -> None:
        if storage.store is not None and not storage.store.has_conditions:
            raise InputError(
                f"--output {storage.location}: runs need a store with conditional writes; use "
                "s3://, gs:// or a shared disk"
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
        """Take the lease.

        Args:
            steal: Take it even if a running driver holds it.

        Raises:
            LeaseError: If a running driver holds it and `steal` is not set.
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
        """Extend the lease.

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
        """Renew the lease from a background thread; a failed write is retried next time."""
        try:
            self.renew()
        except LeaseError as error:
            self._lost = error
        except OSError as error:
            logger.warning("the lease of the run could not be renewed: %s", error)

    def raise_if_lost(self) -> None:
        """Raise the error that `renew_beside` stored; does no I/O.

        Raises:
            LeaseError: If another driver has taken the run.
        """
        if self._lost:
            raise self._lost

    def release(self) -> None:
        """Release the lease; does nothing if another driver holds it."""
        if not self._is_mine():
            return
        self.storage.write(_name(self._number), RELEASED)
        for number in self._numbers():  # lower numbers belong to dead or replaced drivers
            if number < self._number:
                with suppress(FileNotFoundError):
                    self.storage.delete(_name(number))

    def living(self) -> Holder | None:
        """The driver that may be running; `None` if there is none. Writes nothing."""
        last = self._last()
        holder = self._holder(last)
        return holder if holder and self._left_s(last, holder) >= 0 else None

    def _numbers(self) -> list[int]:
        """Numbers of the listed lease files."""
        found = (_FILE.fullmatch(file.name) for file in self.storage.files())
        return [int(one[1]) for one in found if one]

    def _last(self) -> int:
        last = max(self._numbers(), default=0)
        while self.storage.exists(_name(last + 1)):
            last += 1
        return last

    def _holder(self, number: int) -> Holder | None:
        """The holder of a lease; `None` if it is missing, released or unreadable."""
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
        """Seconds until a lease expires; negative if it has or its process here is dead."""
        same = holder.machine and holder.machine == self._me.machine
        if same and not process.is_running(holder.pid):
            return -1.0
        store = self.storage.store
        age_s = store.age_s(self.storage.path(_name(number))) if store else None
        return EXPIRES_S - (self._age_s(holder.renewed_at) if age_s is None else age_s)

    def _named(self, holder: Holder) -> str:
        """Describe a driver in a message."""
        age_s, seen_s = self._age_s(holder.taken_at), self._age_s(holder.renewed_at)
        return (
            f"the driver on host {holder.host}, pid {holder.pid} "
            f"(since {age_s:.0f} s, last seen {seen_s:.0f} s ago)"
        )

    def _age_s(self, moment: str) -> float:
        """Seconds since a time in a lease file; infinite if the time cannot be parsed."""
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
        lease: Lease of a run.
        steal: Take it even if a running driver holds it.
        waits: Wait until the lease of a dead driver has expired. A scheduler starts the next
            attempt within seconds, often on another machine, which can only tell by the expiry
            that the previous driver is dead.
        every_s: Seconds between two renewals.
        clock: Clock for the wait and the renewals.

    Raises:
        LeaseError: If a running driver holds it and `steal` is not set.
    """
    until = clock.monotonic() + (PATIENCE_S if waits else 0)
    while True:
        try:
            lease.take(steal=steal)
            break
        except LeaseError as error:
            if clock.monotonic() >= until:
                raise
            logger.info("waiting: %s", error)
            clock.sleep(_RETRY_EVERY_S)
    renewals = clock.repeat(lease.renew_beside, every_s, "tango-lease")
    renewals.start()
    try:
        yield lease
    finally:
        renewals.stop()
        with suppress(OSError):  # the lease expires anyway
            lease.release()


def _name(number: int) -> str:
    return f".lease-{number:05d}.json"
