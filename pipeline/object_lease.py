"""The lease of a run in an object store: one object, which only conditional PUTs change.

Who writes it has read the version that it replaces, so of two drivers one is refused, whatever
their clocks say and however late a listing is. Whether a driver lives is told by the store's own
clock, or, where a store does not tell the time, by whether the object changes while one looks on.
"""

from __future__ import annotations

import json
import logging
import threading
import uuid
from dataclasses import asdict, replace

from pipeline import process
from pipeline.clock import SYSTEM_CLOCK, Clock
from pipeline.lease import (
    EXPIRES_S,
    RELEASED,
    RENEWED_EVERY_S,
    FileLease,
    Holder,
    Lease,
    LeaseError,
)
from pipeline.remote.objects import ObjectStore
from pipeline.remote.retries import ConflictError
from pipeline.storage import Storage

logger = logging.getLogger(__name__)

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


class ObjectLease:
    """A lease in one object of a run directory.

    Args:
        storage: The run directory, in a store with conditional writes.
        clock: For the dates in messages, and for waiting.
    """

    def __init__(self, storage: Storage, clock: Clock = SYSTEM_CLOCK) -> None:
        assert storage.store is not None
        self.storage = storage
        self._store: ObjectStore = storage.store
        self._path = storage.path(LEASE_FILE)
        self._clock = clock
        self._version = ""
        self._one_at_a_time = threading.Lock()
        now = self._now()
        self._me = Holder(
            uuid.uuid4().hex, process.host(), process.machine(), process.pid(), now, now
        )

    def take(self, *, steal: bool = False) -> None:
        """See `Lease`."""
        while True:
            found = self._store.read_with_version(self._path)
            holder = _holder_in(found[0]) if found else None
            if found and holder and not steal:
                self._raise_if_alive(holder, found[1])
            if holder and steal:
                logger.warning("the lease of %s is stolen", _named(holder))
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
        by = f" by {_named(holder)}" if holder else ""
        raise LeaseError(
            f"{self.storage.location}: this run was taken over{by}; this driver ends, what it has "
            "written is kept"
        )

    def _raise_if_alive(self, holder: Holder, version: str) -> None:
        """Refuse if the holder can be at work; this may have to look on until its lease expires.

        Raises:
            LeaseError: If it is, or may be.
        """
        same = holder.machine and holder.machine == self._me.machine
        if same and not process.is_running(holder.pid):
            return
        age_s = self._store.age_s(self._path)
        if age_s is not None:
            if age_s <= EXPIRES_S:
                raise LeaseError(self._refusal(holder, EXPIRES_S - age_s))
            return
        until = self._clock.monotonic() + EXPIRES_S
        while self._clock.monotonic() < until:
            self._clock.sleep(_LOOKS_EVERY_S)
            now = self._store.stat(self._path)
            if now is None or now.version != version:
                raise LeaseError(self._refusal(holder, EXPIRES_S))

    def _refusal(self, holder: Holder, left_s: float) -> str:
        """The one line for a user."""
        return (
            f"{self.storage.location}: {_named(holder)} works on this run; wait for it, or take "
            f"the run over with --steal (a dead driver's lease ends by itself in "
            f"{max(0.0, left_s):.0f} s)"
        )

    def living(self) -> Holder | None:
        """See `Lease`; where the store tells no time, whoever has it may be at work."""
        found = self._store.read_with_version(self._path)
        holder = _holder_in(found[0]) if found else None
        if holder is None:
            return None
        same = holder.machine and holder.machine == self._me.machine
        if same and not process.is_running(holder.pid):
            return None
        age_s = self._store.age_s(self._path)
        return holder if age_s is None or age_s <= EXPIRES_S else None

    def _content(self) -> bytes:
        """Of the object; no two are equal, so that an own write is told from any other."""
        return json.dumps({**asdict(self._me), "write": uuid.uuid4().hex}).encode()

    def _now(self) -> str:
        """By this machine's clock; nothing is decided by it."""
        return self._clock.now().isoformat()


def _holder_in(data: bytes) -> Holder | None:
    """Who has the lease; `None` if it was given back or nobody can read it."""
    try:
        content = json.loads(data)
        content.pop("write", None)
        return Holder(**content)
    except (ValueError, TypeError, AttributeError):
        return None


def _named(holder: Holder) -> str:
    """A driver, for messages."""
    return f"the driver on host {holder.host}, pid {holder.pid} (since {holder.taken_at})"
