"""The known faults: every mutation undoes one protection of the product.

Most of these faults have been in this project once, or in its first design; the others are what
people most often write in their place.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from contextlib import ExitStack, contextmanager, nullcontext
from dataclasses import dataclass
from datetime import UTC, datetime
from types import SimpleNamespace
from typing import Any
from unittest.mock import patch

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from jobs.run import driver
from pipeline import run
from pipeline.cache import folders
from pipeline.cache.directory import KEYS, Shards, TokenCache, shard_name
from pipeline.cache.names import file_of
from pipeline.cache.rows import SCHEMA, WRITE_OPTIONS, Entry, StoredClip, checked_tokens
from pipeline.executors.workers import BoundedAttempts
from pipeline.progress import parts
from pipeline.progress.answers import AnsweredClips, AnswerWriter
from pipeline.rows import ANSWER
from pipeline.stages import answer, compress
from pipeline.storage import Storage
from pipeline.storage.files import Disk
from pipeline.storage.leases import EXPIRES_S, Holder, Lease
from pipeline.storage.objects import ObjectStore
from pipeline.storage.seal import DAMAGE, DamagedFileError, SealedTable, write_sealed
from tests.chaos.simulator.schedules import WorldKind
from tests.chaos.simulator.stores import SimulatedDisk

ANYWHERE: tuple[WorldKind, ...] = ("disk", "shared", "store")


@dataclass(frozen=True)
class Mutation:
    """One fault of the product.

    Attributes:
        owner: Module or class, or two of them, in which something is replaced.
        name: What is replaced.
        replacement: What takes its place.
        kinds: What goes wrong in the world in schedules that may show it; see `schedules.KINDS`.
        worlds: Where it may show.
        test: A test of the default suite that finds it; "" if the simulator finds it. The simulator
            would have to strike within one of a few steps to show those with a test.
    """

    owner: Any
    name: str
    replacement: Any
    kinds: tuple[str, ...] = ()
    worlds: tuple[WorldKind, ...] = ANYWHERE
    test: str = ""

    @contextmanager
    def applied(self) -> Iterator[None]:
        """Bring the fault back.

        Raises:
            AttributeError: If the product does not have the name.
        """
        owners = self.owner if isinstance(self.owner, tuple) else (self.owner,)
        with ExitStack() as stack:
            for owner in owners:
                stack.enter_context(patch.object(owner, self.name, self.replacement))
            yield


_NO_LEASE = SimpleNamespace(raise_if_lost=lambda: None, renew=lambda: None)


def _renew_unchecked(self: Lease) -> None:
    self.storage.write(f".lease-{self._number:05d}.json", self._content())


def _left_by_date(self: Lease, number: int, holder: Holder) -> float:
    """Compare the dates of two machines instead of asking the store's clock."""
    silent = self._clock.now() - datetime.fromisoformat(holder.renewed_at)
    return EXPIRES_S - silent.total_seconds()


def _write_in_place(self: Storage, name: str, data: bytes | memoryview) -> None:
    """Write without a temporary file."""
    if self.store is not None:
        self.store.write(self.path(name), data)
        return
    disk = self.filesystem
    assert isinstance(disk, Disk)
    disk.make_folder(self.root, exist_ok=True)
    with disk.new_file(self.path(name)) as file:
        file.write(data)
        disk.sync(file)


def _keep_and_drop(self: AnswerWriter, clips: Any) -> None:
    """Drop what failed as soon as the run is resumed."""
    self._kept = np.array(sorted(clips.answers), dtype="S16")
    self.drop_the_others()


_delete = Storage.delete


def _delete_but_facts(self: Storage, name: str) -> None:
    if name != "facts.json":
        _delete(self, name)


def _read_unsealed(folder: Storage, name: str, *, must: bool) -> SealedTable:
    """Accept whatever can be parsed."""
    try:
        table = pq.read_table(pa.BufferReader(folder.read(name)))
        seal = json.loads((table.schema.metadata or {})[b"tango_seal"])
    except DAMAGE as error:
        raise DamagedFileError(str(error)) from error
    return SealedTable(table.replace_schema_metadata(None), seal["run"])


def _read_blindly(folder: Storage, name: str, *, must: bool) -> SealedTable:
    """Take what cannot be parsed for an empty part."""
    try:
        return _read_unsealed(folder, name, must=must)
    except DamagedFileError:
        return SealedTable(ANSWER.empty_table(), folder.root.split("/")[-2])


def _checked_nothing(table: pa.Table, key: str, cache: str) -> StoredClip:
    """Accept whatever can be parsed."""
    (row,) = table.to_pylist()
    with patch("pipeline.cache.rows._seal", lambda *_: row["checksum"]):
        return _checked_but_key(table, key, cache)


def _checked_but_key(table: pa.Table, key: str, cache: str) -> StoredClip:
    """Check everything but whose tokens they are."""
    (row,) = table.to_pylist()
    return checked_tokens(table, row["clip_key"], row["checksum"].partition("@")[2])


def _drop_unread(self: AnswerWriter) -> None:
    """Delete every part but the writer's last one, also those that it has not read."""
    if self._kept is None or self._read is None:
        return
    kept = self._kept
    for name in self.storage.names(".parquet"):
        if name.startswith(f"part-{self._next - 1:05d}"):
            continue
        table = pq.read_table(pa.BufferReader(self.storage.read(name)))
        self._write_kept(table.replace_schema_metadata(None), kept)
        self.storage.delete(name)
    self._kept = self._read = None


def _drop_before_writing(self: AnswerWriter) -> None:
    """Delete a part before what is kept of it is in another one."""
    if self._kept is None or self._read is None:
        return
    kept, read = self._kept, self._read
    tables = [read.read(name) for name in read.overview.names]
    for name in read.overview.names:
        if self.storage.exists(name):
            self.storage.delete(name)
    for table in tables:
        if table is not None:
            self._write_kept(table, kept)
    self._kept = self._read = None


_refresh = Shards.refresh


def _refresh_without_tombstones(self: Shards, names: Iterable[str] | None = None) -> None:
    names = sorted(self.storage.names() if names is None else names)
    _refresh(self, [name for name in names if not name.endswith(".gone")])


def _read_own_file_only(self: TokenCache, key: str) -> Entry:
    found: StoredClip = self.row(key, in_shard=False)
    return found.entry


def _remove_then_write(folder: Any, batch: Any) -> Any:
    """Remove the files before the shard is in place."""
    entries = [file.name.removesuffix(".parquet") for file in batch]
    tables = {entry: folders._read(folder, entry) for entry in entries}
    for entry in entries:
        folder.remove(file_of(entry))
    keys = [entry for entry in entries if isinstance(tables[entry], pa.Table)]
    with (
        folder.storage.writing(shard_name(datetime.now(UTC))) as sink,
        pq.ParquetWriter(sink, SCHEMA, **WRITE_OPTIONS) as writer,
    ):
        for entry in keys:
            writer.write_table(tables[entry])
        writer.add_key_value_metadata({KEYS: json.dumps(keys)})
    yield from ((file_of(entry), None) for entry in keys)


def _write_by_number(self: AnswerWriter, table: pa.Table) -> None:
    """Name parts by their number alone, counted from the start of this driver."""
    self._may_write()
    self._next = getattr(self, "_own", -1) + 1
    self._own = self._next
    write_sealed(table, self.storage, f"part-{self._next:05d}-{'0' * 12}.parquet", self._run)


MUTATIONS = {
    "two drivers: no lease is taken": Mutation(
        driver,
        "held",
        lambda lease, **options: nullcontext(_NO_LEASE),
        ("second driver", "second driver", "decode", "death"),
    ),
    "a lease without fencing: a robbed driver renews it and goes on": Mutation(
        Lease, "renew", _renew_unchecked, ("second driver", "decode", "stop")
    ),
    "a lease judged by the dates of two machines": Mutation(
        Lease, "_left_s", _left_by_date, ("late date", "jump"), ("store",)
    ),
    "a lease that does not end with its driver": Mutation(
        Lease, "_left_s", lambda self, number, holder: EXPIRES_S, ("death",)
    ),
    "a lease by PUTs without a condition": Mutation(
        ObjectStore,
        "create",
        ObjectStore.write,
        test="tests/pipeline/storage/test_leases.py::test_of_many_who_ask_at_once_one_gets_it",
    ),
    "answers that are not flushed when a job ends": Mutation(
        driver, "_flushed", lambda writer, clock: nullcontext(), ("death",)
    ),
    "files that are written in place": Mutation(
        Storage, "write", _write_in_place, ("death",), ("disk", "shared")
    ),
    "files that are not synchronised before they get their names": Mutation(
        SimulatedDisk, "sync", lambda self, file: None, ("death",), ("disk",)
    ),
    "a resume that drops rows before it has others": Mutation(
        AnswerWriter, "keep", _keep_and_drop, test="tests/pipeline/progress/test_answers.py"
    ),
    "a continued run still has the facts of a finished one": Mutation(
        Storage, "delete", _delete_but_facts, test="tests/jobs/run/test_driver.py"
    ),
    "missing answers are not counted at the end": Mutation(
        driver, "add_missing", lambda *args: [], test="tests/jobs/run/test_driver.py"
    ),
    "a store that is away fails the clips that meet it": Mutation(
        run._Watch, "is_alone", lambda self, clip: True, ("away",)
    ),
    "parts of answers whose seal nobody checks": Mutation(
        parts, "read_sealed", _read_unsealed, test="tests/pipeline/progress/test_parts.py"
    ),
    "a part that cannot be read counts as empty": Mutation(
        parts, "read_sealed", _read_blindly, test="tests/pipeline/progress/test_parts.py"
    ),
    "parts of two attempts with one name": Mutation(
        AnswerWriter, "_write", _write_by_number, ("death", "second driver")
    ),
    "parts are deleted before what is kept of them is written": Mutation(
        AnswerWriter,
        "drop_the_others",
        _drop_before_writing,
        test="tests/pipeline/progress/test_parts.py",
    ),
    "parts are deleted that the driver has not read": Mutation(
        AnswerWriter, "drop_the_others", _drop_unread, ("decode", "second driver", "death")
    ),
    "rows that exist twice count twice": Mutation(
        parts, "last_of_each", lambda table: table, test="tests/pipeline/progress/test_parts.py"
    ),
    "failed clips count as finished": Mutation(
        AnsweredClips, "without_failed", lambda self: self, ("decode",)
    ),
    "tokens whose checksum nobody checks": Mutation(
        TokenCache, "checked", staticmethod(_checked_nothing), ("swapped", "rot")
    ),
    "a cache file that was swapped with another clip's": Mutation(
        TokenCache, "checked", staticmethod(_checked_but_key), ("swapped",)
    ),
    "a damaged clip that stays in its cache": Mutation(
        TokenCache, "discard", lambda self, key: None, test="tests/pipeline/test_lost_entries.py"
    ),
    "tombstones that nobody reads": Mutation(
        Shards, "refresh", _refresh_without_tombstones, ("damaged shard",)
    ),
    "a clip that is put into a shard while a job runs is not found there": Mutation(
        TokenCache, "read", _read_own_file_only, ("keeper",)
    ),
    "compaction removes files before their shard is there": Mutation(
        folders, "_write_shard", _remove_then_write, ("killed keeper",)
    ),
    "compaction does not check its copy": Mutation(
        folders,
        "_read_back_and_remove",
        lambda folder, key: folder.remove(file_of(key)),
        test="tests/pipeline/cache/test_compact.py",
    ),
    "a ledger that counts nothing": Mutation(
        BoundedAttempts,
        "__call__",
        lambda self, rows: self._stage(rows),
        test="tests/pipeline/executors/test_attempts.py",
    ),
    "a full disk is the clip's own fault": Mutation(
        (compress, answer), "store_fault", lambda error, where: None, ("away",)
    ),
}
