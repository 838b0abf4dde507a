"""One living driver at a time for a run: a lease that is renewed, and expires with its driver.

The lease with the highest number holds. Taking one creates the next number, which exactly one
caller can do; renewing writes one's own file again. The highest number stays when it is given back:
a driver that stood still between two steps of a renewal finds at the next one that it has lost its
lease, also when the driver that took it has come to its end. In an object store one object holds
the lease (`object_lease.py`).
"""

from __future__ import annotations

import json
import logging
import re
import uuid
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass, replace
from datetime import datetime
from typing import Protocol

from pipeline import process
from pipeline.clock import SYSTEM_CLOCK, Clock
from pipeline.storage import Storage

logger = logging.getLogger(__name__)

EXPIRES_S = 60.0
RENEWED_EVERY_S = 10.0
RELEASED = b'{"released": true}\n'
"""What a lease says that its driver has given back."""
# A leading dot hides it from readers of the run.
_FILE = re.compile(r"\.lease-(\d+)\.json")


class LeaseError(ValueError):
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


class Lease(Protocol):
    """The right to write to a run."""

    def take(self, *, steal: bool = False) -> None:
        """Get it.

        Args:
            steal: Whether a living driver loses it.

        Raises:
            LeaseError: If a living driver has it.
        """
        ...

    def renew(self) -> None:
        """Say that this driver lives.

        Raises:
            LeaseError: If another driver has taken it.
        """
        ...

    def release(self) -> None:
        """Give it back; does nothing if another driver has it."""
        ...

    def living(self) -> Holder | None:
        """The driver that may be at work; `None` if there is none. Nothing is written."""
        ...


class FileLease:
    """A lease in the files of a run directory, on a local disk or NFS.

    Machines that share the directory need clocks that agree to within some seconds.

    Args:
        storage: The run directory.
        clock: Says when a lease has expired.
    """

    def __init__(self, storage: Storage, clock: Clock = SYSTEM_CLOCK) -> None:
        self.storage = storage
        self._clock = clock
        self._number = 0
        now = self._now()
        self._me = Holder(
            uuid.uuid4().hex, process.host(), process.machine(), process.pid(), now, now
        )

    def take(self, *, steal: bool = False) -> None:
        """See `Lease`."""
        while True:
            last = max(self._numbers(), default=0)
            holder = self._holder(last)
            if holder and not steal and self._lives(holder):
                raise LeaseError(self._refusal(holder))
            if holder and steal:
                logger.warning("the lease of %s is stolen", self._named(holder))
            self._me = replace(self._me, taken_at=self._now(), renewed_at=self._now())
            try:
                self.storage.create_file(_name(last + 1), self._content())
            except FileExistsError:  # another driver took it in the meantime; look again
                continue
            self._number = last + 1
            return

    def renew(self) -> None:
        """See `Lease`."""
        numbers = self._numbers()
        holder = self._holder(self._number)
        if max(numbers, default=0) > self._number or not holder or holder.owner != self._me.owner:
            other = self._holder(max(numbers, default=0))
            by = f" by {self._named(other)}" if other else ""
            raise LeaseError(
                f"{self.storage.root}: this run was taken over{by}; this driver ends, what it has "
                "written is kept"
            )
        self._me = replace(self._me, renewed_at=self._now())
        self.storage.write(_name(self._number), self._content())

    def release(self) -> None:
        """See `Lease`."""
        holder = self._holder(self._number)
        if not holder or holder.owner != self._me.owner:
            return
        self.storage.write(_name(self._number), RELEASED)
        for number in self._numbers():  # lower: of drivers that are dead or have lost theirs
            if number < self._number:
                with suppress(FileNotFoundError):
                    self.storage.delete(_name(number))

    def living(self) -> Holder | None:
        """The driver that may be at work; `None` if there is none. Nothing is written."""
        holder = self._holder(max(self._numbers(), default=0))
        return holder if holder and self._lives(holder) else None

    def _numbers(self) -> list[int]:
        """Of all lease files."""
        found = (_FILE.fullmatch(file.base_name) for file in self.storage.files())
        return [int(one[1]) for one in found if one]

    def _holder(self, number: int) -> Holder | None:
        """Who wrote a lease file; `None` if it is not there or nobody can read it."""
        try:
            return Holder(**json.loads(self.storage.read(_name(number))))
        except (FileNotFoundError, ValueError, TypeError):
            return None

    def _content(self) -> bytes:
        """Of our lease file."""
        return json.dumps(asdict(self._me)).encode()

    def _lives(self, holder: Holder) -> bool:
        """Whether a driver can be at work: a dead process of this machine cannot."""
        if (
            holder.machine
            and holder.machine == self._me.machine
            and not process.is_running(holder.pid)
        ):
            return False
        return self._age_s(holder.renewed_at) <= EXPIRES_S

    def _refusal(self, holder: Holder) -> str:
        """The one line for a user."""
        silent = self._age_s(holder.renewed_at)
        return (
            f"{self.storage.root}: {self._named(holder)} works on this run; wait for it, or take "
            f"the run over with --steal (a dead driver's lease ends by itself in "
            f"{max(0.0, EXPIRES_S - silent):.0f} s)"
        )

    def _named(self, holder: Holder) -> str:
        """A driver, for messages."""
        return (
            f"the driver on host {holder.host}, pid {holder.pid} (since "
            f"{self._age_s(holder.taken_at):.0f} s, last seen "
            f"{self._age_s(holder.renewed_at):.0f} s ago)"
        )

    def _age_s(self, moment: str) -> float:
        """Seconds since a time in a lease file; a time that nobody can read is long ago."""
        try:
            return max(0.0, (self._clock.now() - datetime.fromisoformat(moment)).total_seconds())
        except (ValueError, TypeError):
            return float("inf")

    def _now(self) -> str:
        """The time as lease files hold it."""
        return self._clock.now().isoformat()


class KeptLease:
    """A lease that is renewed beside the work; ask it before every write.

    Args:
        lease: Has been taken.
        every_s: Seconds between two renewals.
        clock: Says when they have passed.
    """

    def __init__(
        self, lease: Lease, every_s: float = RENEWED_EVERY_S, clock: Clock = SYSTEM_CLOCK
    ) -> None:
        self._lease = lease
        self._lost: LeaseError | None = None
        self._renewals = clock.repeat(self._renew, every_s, "tango-lease")

    def raise_if_lost(self) -> None:
        """Raise what a renewal found; costs nothing.

        Raises:
            LeaseError: If another driver has taken the run.
        """
        if self._lost:
            raise self._lost

    def renew(self) -> None:
        """Look and renew now.

        Raises:
            LeaseError: If another driver has taken the run.
        """
        self.raise_if_lost()
        self._lease.renew()

    def start(self) -> None:
        """Renew from now on."""
        self._renewals.start()

    def stop(self) -> None:
        """Renew no more."""
        self._renewals.stop()

    def _renew(self) -> None:
        """One renewal; a disk that fails may be back at the next one."""
        if self._lost:
            return
        try:
            self._lease.renew()
        except LeaseError as error:
            self._lost = error
        except OSError as error:
            logger.warning("the lease of the run could not be renewed: %s", error)


@contextmanager
def held(lease: Lease, *, steal: bool = False, clock: Clock = SYSTEM_CLOCK) -> Iterator[KeptLease]:
    """Take a lease, keep it while the block runs, and release it however the block ends.

    Raises:
        LeaseError: If a living driver has it.
    """
    lease.take(steal=steal)
    kept = KeptLease(lease, clock=clock)
    kept.start()
    try:
        yield kept
    finally:
        kept.stop()
        with suppress(OSError):  # it expires
            lease.release()


def _name(number: int) -> str:
    """Of a lease file."""
    return f".lease-{number:05d}.json"
