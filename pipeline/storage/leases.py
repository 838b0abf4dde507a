"""One living driver at a time for a run: a lease that is renewed, and expires with its driver.

On a disk the lease with the highest number holds. Taking one creates the next number, which exactly
one caller can do; renewing writes one's own file again. The highest number stays when it is given
back: a driver that stood still between two steps of a renewal finds at the next one that it has
lost its lease, also when the driver that took it has come to its end.

In an object store one object holds the lease, and only conditional PUTs change it. Who writes it
has read the version that it replaces, so of two drivers one is refused, whatever their clocks say
and however late a listing is. Whether a driver lives is told by the store's own clock, or, where a
store does not tell the time, by whether the object changes while one looks on.
"""

from __future__ import annotations

import json
import logging
import re
import threading
import uuid
from abc import ABC, abstractmethod
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass, replace
from datetime import datetime

from pipeline.runtime import process
from pipeline.runtime.clock import SYSTEM_CLOCK, Clock
from pipeline.storage.files import Storage
from pipeline.storage.objects import ObjectStore
from pipeline.storage.retries import ConflictError

logger = logging.getLogger(__name__)

EXPIRES_S = 60.0
RENEWED_EVERY_S = 10.0
PATIENCE_S = EXPIRES_S + RENEWED_EVERY_S
"""After this wait the lease of a dead driver has expired."""
_ASKED_EVERY_S = 2.0
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


class Lease(ABC):
    """The right to write to a run.

    Args:
        storage: The run directory.
        clock: Says when a lease in files has expired; for dates in messages, and for waiting.
    """

    def __init__(self, storage: Storage, clock: Clock = SYSTEM_CLOCK) -> None:
        self.storage = storage
        self._clock = clock
        now = self._now()
        self._me = Holder(
            uuid.uuid4().hex, process.host(), process.machine(), process.pid(), now, now
        )

    @abstractmethod
    def take(self, *, steal: bool = False) -> None:
        """Get it.

        Args:
            steal: Whether a living driver loses it.

        Raises:
            LeaseError: If a living driver has it.
        """

    @abstractmethod
    def renew(self) -> None:
        """Say that this driver lives.

        Raises:
            LeaseError: If another driver has taken it.
        """

    @abstractmethod
    def release(self) -> None:
        """Give it back; does nothing if another driver has it."""

    @abstractmethod
    def living(self) -> Holder | None:
        """The driver that may be at work; `None` if there is none. Nothing is written."""

    def _is_dead(self, holder: Holder) -> bool:
        """Whether a driver was a process of this machine that has ended."""
        same = holder.machine and holder.machine == self._me.machine
        return bool(same) and not process.is_running(holder.pid)

    def _taken_over(self, holder: Holder | None) -> LeaseError:
        by = f" by {self._named(holder)}" if holder else ""
        return LeaseError(
            f"{self.storage.location}: this run was taken over{by}; this driver ends, what it has "
            "written is kept"
        )

    def _refusal(self, holder: Holder, left_s: float) -> LeaseError:
        return LeaseError(
            f"{self.storage.location}: {self._named(holder)} works on this run; wait for it, or "
            f"take the run over with --steal (a dead driver's lease ends by itself in "
            f"{max(0.0, left_s):.0f} s)"
        )

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

    def _now(self) -> str:
        """The time as leases hold it."""
        return self._clock.now().isoformat()


class FileLease(Lease):
    """A lease in the files of a run directory, on a local disk or NFS.

    Machines that share the directory need clocks that agree to within some seconds.
    """

    _number = 0

    def take(self, *, steal: bool = False) -> None:
        """See `Lease`."""
        while True:
            last = max(self._numbers(), default=0)
            holder = self._holder(last)
            if holder and not steal and self._lives(holder):
                raise self._refusal(holder, EXPIRES_S - self._age_s(holder.renewed_at))
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
            raise self._taken_over(self._holder(max(numbers, default=0)))
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
        return not self._is_dead(holder) and self._age_s(holder.renewed_at) <= EXPIRES_S


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
def held(
    lease: Lease, *, steal: bool = False, waits: bool = False, clock: Clock = SYSTEM_CLOCK
) -> Iterator[KeptLease]:
    """Take a lease, keep it while the block runs, and release it however the block ends.

    Args:
        lease: Of a run.
        steal: Whether a living driver loses it.
        waits: Whether to wait until the lease of a dead driver has expired: a scheduler starts the
            next attempt within seconds, often on another machine, where nothing but time says that
            the driver before is dead.
        clock: For the wait and the renewals.

    Raises:
        LeaseError: If a living driver has it.
    """
    _take(lease, steal, PATIENCE_S if waits else 0.0, clock)
    kept = KeptLease(lease, clock=clock)
    kept.start()
    try:
        yield kept
    finally:
        kept.stop()
        with suppress(OSError):  # it expires
            lease.release()


def _take(lease: Lease, steal: bool, patience_s: float, clock: Clock) -> None:
    """Take a lease; what refuses it is tried again until the patience ends."""
    started, said = clock.monotonic(), False
    while True:
        try:
            return lease.take(steal=steal)
        except LeaseError as error:
            if clock.monotonic() - started >= patience_s:
                raise
            if not said:
                logger.info("waiting for up to %.0f s: %s", patience_s, error)
                said = True
            clock.sleep(_ASKED_EVERY_S)


def _name(number: int) -> str:
    """Of a lease file."""
    return f".lease-{number:05d}.json"


# A leading dot hides it from readers of the run.
LEASE_FILE = ".lease.json"
_LOOKS_EVERY_S = RENEWED_EVERY_S / 2


def lease_of(storage: Storage, clock: Clock = SYSTEM_CLOCK) -> Lease:
    """The lease of a run directory, wherever it is.

    Raises:
        ValueError: If the store has no conditional writes.
    """
    if storage.store is None:
        return FileLease(storage, clock)
    if not storage.store.has_conditions:
        raise ValueError(
            f"--output {storage.location}: two drivers could not be told apart there, because no "
            "conditional writes are known for this kind of store; use s3://, gs:// or a shared disk"
        )
    return ObjectLease(storage, clock)


class ObjectLease(Lease):
    """A lease in one object of a run directory, in a store with conditional writes."""

    def __init__(self, storage: Storage, clock: Clock = SYSTEM_CLOCK) -> None:
        super().__init__(storage, clock)
        assert storage.store is not None
        self._store: ObjectStore = storage.store
        self._path = storage.path(LEASE_FILE)
        self._version = ""
        self._one_at_a_time = threading.Lock()

    def take(self, *, steal: bool = False) -> None:
        """See `Lease`."""
        while True:
            found = self._store.read_with_version(self._path)
            holder = _holder_in(found[0]) if found else None
            if found and holder and not steal:
                self._raise_if_alive(holder, found[1])
            if holder and steal:
                logger.warning("the lease of %s is stolen", self._named(holder))
            self._me = replace(self._me, taken_at=self._now(), renewed_at=self._now())
            try:
                if found is None:
                    self._version = self._store.create(self._path, self._content())
                else:
                    self._version = self._store.replace(self._path, self._content(), found[1])
            except (FileExistsError, ConflictError):  # another driver was quicker; look again
                continue
            return

    def renew(self) -> None:
        """See `Lease`."""
        with self._one_at_a_time:
            self._me = replace(self._me, renewed_at=self._now())
            while True:
                try:
                    self._version = self._store.replace(self._path, self._content(), self._version)
                except ConflictError:
                    self._adopt_or_raise()
                else:
                    return

    def release(self) -> None:
        """See `Lease`; what stays is an object that says that nobody has it."""
        with self._one_at_a_time:
            try:
                self._store.replace(self._path, RELEASED, self._version)
            except ConflictError:  # another driver has it
                return

    def _adopt_or_raise(self) -> None:
        """Go on from an own renewal whose answer never came; another driver's ends this one."""
        found = self._store.read_with_version(self._path)
        holder = _holder_in(found[0]) if found else None
        if found and holder and holder.owner == self._me.owner:
            self._version = found[1]
            return
        raise self._taken_over(holder)

    def _raise_if_alive(self, holder: Holder, version: str) -> None:
        """Refuse if the holder can be at work; this may have to look on until its lease expires.

        Raises:
            LeaseError: If it is, or may be.
        """
        if self._is_dead(holder):
            return
        age_s = self._store.age_s(self._path)
        if age_s is not None:
            if age_s <= EXPIRES_S:
                raise self._refusal(holder, EXPIRES_S - age_s)
            return
        until = self._clock.monotonic() + EXPIRES_S
        while self._clock.monotonic() < until:
            self._clock.sleep(_LOOKS_EVERY_S)
            now = self._store.stat(self._path)
            if now is None or now.version != version:
                raise self._refusal(holder, EXPIRES_S)

    def living(self) -> Holder | None:
        """See `Lease`; where the store tells no time, whoever has it may be at work."""
        found = self._store.read_with_version(self._path)
        holder = _holder_in(found[0]) if found else None
        if holder is None:
            return None
        if self._is_dead(holder):
            return None
        age_s = self._store.age_s(self._path)
        return holder if age_s is None or age_s <= EXPIRES_S else None

    def _content(self) -> bytes:
        """Of the object; no two are equal, so that an own write is told from any other."""
        return json.dumps({**asdict(self._me), "write": uuid.uuid4().hex}).encode()


def _holder_in(data: bytes) -> Holder | None:
    """Who has the lease; `None` if it was given back or nobody can read it."""
    try:
        content = json.loads(data)
        content.pop("write", None)
        return Holder(**content)
    except (ValueError, TypeError, AttributeError):
        return None
