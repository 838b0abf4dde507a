"""Merge many small files of a cache into few large ones.

A shard is written and read back before the files it was made of are removed. A call that is killed
in between leaves clips twice, which counts as once; the next call removes what is left over. A job
that planned with a clip's own file looks for the clip in the shards when the file is missing.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime
from functools import partial
from typing import TypeVar

import pyarrow as pa
import pyarrow.parquet as pq

from pipeline.cache.folders import CacheFolder, brief, written_at
from pipeline.cache.names import entry_of, file_of
from pipeline.cache.rows import CacheError
from pipeline.cache.shards import KEYS, shard_name
from pipeline.runtime.clock import SYSTEM_CLOCK, Clock
from pipeline.storage.objects import PARALLEL, Stored

R = TypeVar("R")

SHARD_BYTES = 256 * 10**6
# Every clip adds 1.3 kB to the footer, which readers must read completely.
MAX_CLIPS = 2000
_START = datetime(1970, 1, 1, tzinfo=UTC)


def compact_cache(
    folder: CacheFolder, clock: Clock = SYSTEM_CLOCK
) -> Iterator[tuple[str, str | None]]:
    """Merge entries in single files into shards of about 256 MB, ordered by age.

    Args:
        folder: The cache.
        clock: Dates a shard if the file system has no modification times.

    Yields:
        (file name, `None`) for every removed file, and (file name, problem) for every file that is
        kept because of a problem.

    Raises:
        InputError: If the cache's manifest cannot be trusted.
    """
    shards = folder.opened.shards
    shards.refresh()
    in_shards = shards.by_key()
    entries = {entry_of(file.name): file for file in folder.singles}
    # Shard by shard, so that only a few footers stay in memory.
    doubles = sorted(entries.keys() & in_shards.keys(), key=lambda entry: in_shards[entry])
    for entry, problem in _for_each(_read_back_and_remove, folder, doubles):
        if problem is None:
            del entries[entry]
            yield file_of(entry), None
        else:
            shards.discard(entry)
    for batch in _batches(list(entries.values())):
        yield from _write_shard(folder, batch, clock)
    if not folder.storage.is_local:  # a disk's footers cost nothing to read
        shards.refresh()
        if shards.by_key():
            shards.write_index()


def _batches(files: list[Stored]) -> Iterator[list[Stored]]:
    """Group files into shards, oldest first; a single remaining file is not merged."""
    batch: list[Stored] = []
    size = 0
    for file in sorted(files, key=lambda file: (written_at(file) or _START, file.name)):
        batch.append(file)
        size += file.size
        if size >= SHARD_BYTES or len(batch) == MAX_CLIPS:
            yield batch
            batch, size = [], 0
    if len(batch) > 1:
        yield batch


def _write_shard(
    folder: CacheFolder, batch: list[Stored], clock: Clock
) -> Iterator[tuple[str, str | None]]:
    """Write one shard, read it back, and remove its source files."""
    cache, storage = folder.opened, folder.storage
    times = [time for file in batch if (time := written_at(file)) is not None]
    name = shard_name(max(times, default=clock.now()))
    entries = [entry_of(file.name) for file in batch]
    moved: list[str] = []
    with (
        storage.writing(name) as sink,
        pq.ParquetWriter(sink, cache.schema, **cache.write_options) as writer,
    ):
        for entry, table in _for_each(_read, folder, entries):
            if isinstance(table, CacheError):
                yield file_of(entry), brief(table, folder)
            elif table is not None and set(table.schema.names) > set(cache.schema.names):
                continue  # large signals stay in files of their own
            elif table is not None and not table.schema.equals(cache.schema):
                yield file_of(entry), "another program has written it, with other columns"
            elif table is not None:
                writer.write_table(table)
                moved.append(entry)
        writer.add_key_value_metadata({KEYS: json.dumps(moved)})
    if not moved:
        folder.remove(name)
    cache.shards.refresh([name])
    for entry, problem in _for_each(_read_back_and_remove, folder, moved):
        yield file_of(entry), problem


def _read(folder: CacheFolder, entry: str) -> pa.Table | CacheError | None:
    """The row in an entry's own file, `None` if another call has moved it, or the error."""
    try:
        return folder.opened.row(entry, in_shard=False).table
    except FileNotFoundError:
        return None
    except CacheError as error:
        return error


def _read_back_and_remove(folder: CacheFolder, entry: str) -> str | None:
    """Remove an entry's own file if its copy in a shard is valid, else return the problem."""
    try:
        folder.opened.row(entry, in_shard=True)
    except (CacheError, FileNotFoundError) as error:
        return f"its copy does not read back: {error}"
    folder.remove(file_of(entry))
    return None


def _for_each(
    function: Callable[[CacheFolder, str], R], folder: CacheFolder, entries: Sequence[str]
) -> Iterator[tuple[str, R]]:
    """Yield entries with the results of a function, in a store of several at the same time.

    Few results are pending, because each may be as large as a clip's tokens.
    """
    if folder.storage.is_local:
        yield from ((entry, function(folder, entry)) for entry in entries)
        return
    with ThreadPoolExecutor(PARALLEL) as workers:
        for start in range(0, len(entries), PARALLEL):
            some = entries[start : start + PARALLEL]
            yield from zip(some, workers.map(partial(function, folder), some), strict=True)
