"""Faults of what is read and written: parts of answers, token sets, shards, stages."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from typing import Any
from unittest.mock import patch

import pyarrow as pa
import pyarrow.parquet as pq

from pipeline.cache.directory import TokenCache, read_row
from pipeline.cache.names import file_of
from pipeline.cache.rows import (
    SCHEMA,
    WRITE_OPTIONS,
    Entry,
    StoredClip,
    checked_tokens,
)
from pipeline.cache.shards import KEYS, Shards, shard_name
from pipeline.executors import attempts
from pipeline.progress.answers import AnswerWriter
from pipeline.storage import Storage
from pipeline.storage.seal import DAMAGE, DamagedFileError, SealedTable
from tests.chaos.mutations import Mutation


def _read_unsealed(folder: Storage, name: str, *, must: bool) -> SealedTable:
    """Whatever can be parsed is believed."""
    try:
        table = pq.read_table(pa.BufferReader(folder.read(name)))
        seal = json.loads((table.schema.metadata or {})[b"tango_seal"])
    except DAMAGE as error:
        raise DamagedFileError(str(error)) from error
    return SealedTable(table.replace_schema_metadata(None), seal["run"])


def _read_blindly(folder: Storage, name: str, *, must: bool) -> SealedTable:
    """What cannot be parsed is an empty part."""
    from pipeline.rows import ANSWER

    try:
        return _read_unsealed(folder, name, must=must)
    except DamagedFileError:
        return SealedTable(ANSWER.empty_table(), folder.root.split("/")[-2])


def _checked_nothing(table: pa.Table, key: str, cache: str) -> StoredClip:
    """Whatever can be parsed is the clip."""
    (row,) = table.to_pylist()
    with patch("pipeline.cache.rows._seal", lambda *_: row["checksum"]):
        return checked_tokens(table, row["clip_key"], row["checksum"].partition("@")[2])


def _checked_but_key(table: pa.Table, key: str, cache: str) -> StoredClip:
    """Everything but whose tokens they are."""
    (row,) = table.to_pylist()
    return checked_tokens(table, row["clip_key"], row["checksum"].partition("@")[2])


def _drop_unread(self: AnswerWriter) -> None:
    """Deletes every part but its own last one, also those that it has not read."""
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
    """Deletes a part before what is kept of it is in another one."""
    if self._kept is None or self._read is None:
        return
    kept, parts = self._kept, self._read
    tables = [parts.read(name) for name in parts.overview.names]
    for name in parts.overview.names:
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
    found: StoredClip = read_row(TokenCache, self.shards, key, in_shard=False)
    return found.entry


def _remove_then_write(folder: Any, batch: Any, clock: Any) -> Any:
    """Removes the files before the shard is in place."""
    from pipeline.cache import compact

    entries = [file.name.removesuffix(".parquet") for file in batch]
    tables = {entry: compact._read(folder, entry) for entry in entries}
    for entry in entries:
        folder.remove(file_of(entry))
    keys = [entry for entry in entries if isinstance(tables[entry], pa.Table)]
    with (
        folder.storage.writing(shard_name(clock.now())) as sink,
        pq.ParquetWriter(sink, SCHEMA, **WRITE_OPTIONS) as writer,
    ):
        for entry in keys:
            writer.write_table(tables[entry])
        writer.add_key_value_metadata({KEYS: json.dumps(keys)})
    yield from ((file_of(entry), None) for entry in keys)


def _remove_unseen(folder: Any, key: str) -> None:
    """Removes a clip's own file, and whatever was put in its place, without a look at the copy."""
    folder.remove(file_of(key))


def _first_number(self: AnswerWriter, table: pa.Table) -> None:
    """Names parts by their number alone, counted from the start of this driver."""
    from pipeline.storage.seal import write_sealed

    self._may_write()
    self._next = getattr(self, "_own", -1) + 1
    self._own = self._next
    write_sealed(table, self.storage, f"part-{self._next:05d}-{'0' * 12}.parquet", self._run)


def _unbounded(self: attempts.BoundedAttempts, rows: Iterable[Any]) -> Iterator[Any]:
    return self._stage(rows)


def _no_fault(error: BaseException, where: str) -> None:
    return None


def _last_is_first(table: pa.Table) -> pa.Table:
    return table


def _discard_nothing(self: TokenCache, key: str) -> None:
    """A damaged clip stays where it is."""


FILES = (
    Mutation(
        "parts of answers whose seal nobody checks",
        {"pipeline.progress.parts.read_sealed": _read_unsealed},
        ("rot", "death"),
        rare=True,
    ),
    Mutation(
        "a part that cannot be read counts as empty",
        {
            "pipeline.progress.parts.read_sealed": _read_blindly,
            "jobs.run.driver.add_missing": lambda *_: [],
        },
        ("rot", "death"),
    ),
    Mutation(
        "parts of two attempts with one name",
        {"pipeline.progress.answers.AnswerWriter._write": _first_number},
        ("death", "second driver"),
        rare=True,
    ),
    Mutation(
        "parts are deleted before what is kept of them is written",
        {"pipeline.progress.answers.AnswerWriter.drop_the_others": _drop_before_writing},
        ("decode", "death", "rot"),
        rare=True,
    ),
    Mutation(
        "parts are deleted that the driver has not read",
        {"pipeline.progress.answers.AnswerWriter.drop_the_others": _drop_unread},
        ("decode", "second driver", "death"),
    ),
    Mutation(
        "rows that are there twice count twice",
        {"pipeline.progress.parts.last_of_each": _last_is_first},
        ("death", "decode", "second driver"),
        rare=True,
    ),
    Mutation(
        "failed clips count as finished",
        {"pipeline.progress.resume.AnsweredClips.without_failed": lambda self: self},
        ("decode",),
    ),
    Mutation(
        "tokens whose checksum nobody checks",
        {"pipeline.cache.directory.TokenCache.checked": staticmethod(_checked_nothing)},
        ("swapped", "rot"),
    ),
    Mutation(
        "a cache file that was swapped with another clip's",
        {"pipeline.cache.directory.TokenCache.checked": staticmethod(_checked_but_key)},
        ("swapped",),
    ),
    Mutation(
        "a damaged clip that stays in its cache",
        {"pipeline.cache.directory.TokenCache.discard": _discard_nothing},
        ("rot", "death"),
    ),
    Mutation(
        "tombstones that nobody reads",
        {"pipeline.cache.shards.Shards.refresh": _refresh_without_tombstones},
        ("damaged shard",),
    ),
    Mutation(
        "a clip that is put into a shard while a job runs is not found there",
        {"pipeline.cache.directory.TokenCache.read": _read_own_file_only},
        ("keeper",),
    ),
    Mutation(
        "compaction removes files before their shard is there",
        {"pipeline.cache.compact._write_shard": _remove_then_write},
        ("killed keeper",),
    ),
    Mutation(
        "compaction does not look at its copy",
        {"pipeline.cache.compact._read_back_and_remove": _remove_unseen},
        ("keeper", "rot"),
        rare=True,
    ),
    Mutation(
        "a ledger that counts nothing",
        {"pipeline.executors.attempts.BoundedAttempts.__call__": _unbounded},
        ("poison",),
    ),
    Mutation(
        "a full disk is the clip's own fault",
        {
            "pipeline.stages.compress.store_fault": _no_fault,
            "pipeline.stages.answer.store_fault": _no_fault,
        },
        ("away",),
    ),
)
