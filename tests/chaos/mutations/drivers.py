"""Faults of drivers: the lease, the end of a job, what a run says of itself."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from datetime import datetime
from typing import Any

import numpy as np

from pipeline.progress.answers import AnswerWriter
from pipeline.rows import AnswerRow
from pipeline.storage import Storage
from pipeline.storage.files import Disk
from pipeline.storage.leases import EXPIRES_S, Holder, Lease
from pipeline.storage.objects import ObjectStore
from tests.chaos.mutations import Mutation
from tests.chaos.simulator.disk import SimulatedDisk


class _NoLease:
    def raise_if_lost(self) -> None: ...
    def renew(self) -> None: ...


@contextmanager
def _nothing_held(lease: Any, **options: Any) -> Iterator[_NoLease]:
    yield _NoLease()


def _renew_unchecked(self: Lease) -> None:
    self.storage.write(f".lease-{self._number:05d}.json", self._content())


def _left_by_date(self: Lease, number: int, holder: Holder) -> float:
    """By the dates of two machines, not by the store's clock."""
    silent = self._clock.now() - datetime.fromisoformat(holder.renewed_at)
    return EXPIRES_S - silent.total_seconds()


@contextmanager
def _unflushed(writer: AnswerWriter | None, clock: Any) -> Iterator[None]:
    yield


def _write_in_place(self: Storage, name: str, data: bytes | memoryview) -> None:
    """Without a file aside."""
    if self.store is not None:
        self.store.write(self.path(name), data)
        return
    disk = self.filesystem
    assert isinstance(disk, Disk)
    disk.make_folder(self.root, exist_ok=True)
    with disk.new_file(self.path(name)) as file:
        file.write(data)
        disk.sync(file)


def _sync_nothing(self: SimulatedDisk, file: Any) -> None:
    """As if nobody called fsync."""


def _keep_and_drop(self: AnswerWriter, clips: Any) -> None:
    """Drops what failed as soon as the run is resumed."""
    self._kept = np.array(sorted(clips.questions), dtype="S16")
    self.drop_the_others()


_delete = Storage.delete


def _delete_but_facts(self: Storage, name: str) -> None:
    if name != "facts.json":
        _delete(self, name)


def _no_missing(*_: Any) -> list[AnswerRow]:
    return []


DRIVERS = (
    Mutation(
        "two drivers: no lease is taken",
        {"jobs.run.driver.held": _nothing_held},
        ("second driver", "second driver", "decode", "death"),
        rare=True,
    ),
    Mutation(
        "a lease without fencing: a robbed driver renews it and goes on",
        {"pipeline.storage.leases.Lease.renew": _renew_unchecked},
        ("second driver", "decode", "stop"),
        rare=True,
    ),
    Mutation(
        "a lease judged by the dates of two machines",
        {"pipeline.storage.leases.Lease._left_s": _left_by_date},
        ("late date", "jump"),
        ("store",),
    ),
    Mutation(
        "a lease that does not end with its driver",
        {"pipeline.storage.leases.Lease._left_s": lambda self, number, holder: EXPIRES_S},
        ("death",),
    ),
    Mutation(
        "a lease by PUTs without a condition",
        {"pipeline.storage.objects.ObjectStore.create": ObjectStore.write},
        ("second driver", "decode"),
        ("store",),
        rare=True,
    ),
    Mutation(
        "answers that are not flushed when a job ends",
        {"jobs.run.driver._flushed": _unflushed},
        ("death",),
    ),
    Mutation(
        "files that are written in place",
        {"pipeline.storage.Storage.write": _write_in_place},
        ("death",),
        ("disk", "shared"),
        rare=True,
    ),
    Mutation(
        "files that are not synchronised before they get their names",
        {"tests.chaos.simulator.disk.SimulatedDisk.sync": _sync_nothing},
        ("death",),
        ("disk",),
    ),
    Mutation(
        "a resume that drops rows before it has others",
        {"pipeline.progress.answers.AnswerWriter.keep": _keep_and_drop},
        ("decode", "death", "death"),
        rare=True,
    ),
    Mutation(
        "a run that is continued and says that it is finished",
        {"pipeline.storage.Storage.delete": _delete_but_facts},
        ("decode", "death", "death"),
        rare=True,
    ),
    Mutation(
        "answers that nobody counts at the end",
        {"jobs.run.driver.add_missing": _no_missing},
        ("rot",),
        rare=True,
    ),
    Mutation(
        "a store that is away fails the clips that meet it",
        {"pipeline.run._Watch.is_alone": lambda self, clip: True},
        ("away",),
    ),
)
