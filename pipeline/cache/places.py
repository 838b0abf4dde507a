"""Where in a file the row of an entry is, so that parts of it can be read."""

from __future__ import annotations

import mmap
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

import pyarrow as pa
import pyarrow.parquet as pq

from pipeline.cache.footers import read_footer
from pipeline.cache.sealed_rows import CacheError
from pipeline.storage import Storage

# What a damaged footer leads to: a footer that does not parse is an OSError of pyarrow.
_DAMAGE = (
    pa.ArrowException, OSError, ValueError, KeyError, IndexError, TypeError, OverflowError,
    MemoryError,
)  # fmt: skip
# What comes from the disk or the store, and says nothing about the bytes.
_NOT_DAMAGE = (FileNotFoundError, ConnectionError, TimeoutError, PermissionError)

_PREFIX = 4  # before a value of bytes, plain and not compressed: how many there are


@contextmanager
def damage_named(storage: Storage, file: str) -> Iterator[None]:
    """Turn what damaged bytes of a file lead to into a `CacheError`; faults of a store stay.

    Raises:
        CacheError: In one line that names the file.
    """
    try:
        yield
    except (CacheError, *_NOT_DAMAGE):
        raise
    except _DAMAGE as error:
        if isinstance(error, OSError) and error.errno is not None:  # the disk's
            raise
        reason = " ".join(str(error).split()) or type(error).__name__
        raise CacheError(f"{storage.path(file)} cannot be read: {reason}") from error


@dataclass(frozen=True)
class RowPlace:
    """A row group with one row.

    Attributes:
        storage: The cache's directory.
        file: Name of the file.
        footer: Of the file.
        group: Number of the row group.
        held: Bytes of the file that have been read already.
        held_from: Their place in the file.
    """

    storage: Storage
    file: str
    footer: pq.FileMetaData
    group: int
    held: bytes = b""
    held_from: int = 0

    def table(self, columns: Sequence[str] | None = None) -> pa.Table:
        """Some columns, or all, in one request if they were not fetched before.

        Raises:
            FileNotFoundError: If the file has gone.
            pyarrow.ArrowException, OSError: If the bytes are damaged.
        """
        data, start = self._bytes(columns)
        # One thread: others may outlive the call, and at exit the interpreter.
        with pa.BufferReader(_padded(data, start)) as source:
            parquet = pq.ParquetFile(source, metadata=self.footer, pre_buffer=False)
            return parquet.read_row_group(
                self.group, columns=None if columns is None else list(columns), use_threads=False
            )

    def fetched(self, columns: Sequence[str] | None = None) -> RowPlace:
        """The same with some columns read, or all, so that a later `table` of them asks nobody.

        Raises:
            FileNotFoundError: If the file has gone.
            CacheError: If its footer is damaged.
        """
        with damage_named(self.storage, self.file):
            data, start = self._bytes(columns)
        return RowPlace(self.storage, self.file, self.footer, self.group, data, start)

    def value_at(self, column: str, num_bytes: int) -> int:
        """Where the bytes of the row's value in a plain, uncompressed column begin.

        A page holds its values after everything else, so the only value of the only page ends
        where the column ends.

        Raises:
            ValueError: If the column does not hold one value of this size in this way.
        """
        chunk = _chunk(self.footer.row_group(self.group), column)
        start = _start(chunk) + chunk.total_compressed_size - num_bytes
        plain = chunk.compression == "UNCOMPRESSED" and not chunk.has_dictionary_page
        if not plain or start < _start(chunk) + _PREFIX:
            raise ValueError(f"column {column} does not hold {num_bytes} plain bytes")
        return int(start)

    def _bytes(self, columns: Sequence[str] | None) -> tuple[bytes, int]:
        """The bytes that hold some columns, and where they begin."""
        window = _window(self.footer.row_group(self.group), columns)
        held_to = self.held_from + len(self.held)
        if self.held_from <= window.start and window.stop <= held_to:
            return self.held, self.held_from
        with self.storage.opened(self.file) as file:
            return file.read_at(window.stop - window.start, window.start), window.start


def place_in_file(storage: Storage, file: str) -> RowPlace:
    """The row of an entry that has a file of its own; its end is read, in a store in one request.

    Raises:
        FileNotFoundError: If the file is not there.
        CacheError: If it is no file of Parquet with one row group.
    """
    with damage_named(storage, file):
        return _place_in_file(storage, file)


def _place_in_file(storage: Storage, file: str) -> RowPlace:
    """The same, with whatever damaged bytes lead to."""
    with storage.opened(file) as opened:
        footer = read_footer(opened)
    groups = footer.metadata.num_row_groups
    if groups != 1:
        raise pa.ArrowInvalid(f"it holds {groups} row groups instead of one")
    return RowPlace(storage, file, footer.metadata, 0, footer.tail, footer.start)


def _chunk(group: pq.RowGroupMetaData, column: str) -> pq.ColumnChunkMetaData:
    """One column of a row group."""
    for index in range(group.num_columns):
        chunk = group.column(index)
        if chunk.path_in_schema == column:
            return chunk
    raise ValueError(f"there is no column {column}")


def _start(chunk: pq.ColumnChunkMetaData) -> int:
    """First byte of a column."""
    return int(chunk.dictionary_page_offset or chunk.data_page_offset)


def _window(group: pq.RowGroupMetaData, columns: Sequence[str] | None) -> range:
    """The bytes of some columns of a row group in its file."""
    chunks = [group.column(index) for index in range(group.num_columns)]
    wanted = [c for c in chunks if columns is None or c.path_in_schema.split(".")[0] in columns]
    if not wanted:
        raise ValueError("none of its columns is one of a cache")
    return range(min(map(_start, wanted)), max(_start(c) + c.total_compressed_size for c in wanted))


def _padded(data: bytes, start: int) -> pa.Buffer:
    """A part of a file at its offset in the file; pages that nobody touches take no memory."""
    whole = mmap.mmap(-1, start + len(data))
    whole[start:] = data
    return pa.py_buffer(whole)
