"""Footers of Parquet files, with a checksum that is checked before a footer is parsed.

Parquet has no checksum of its footer, and pyarrow ends the process on some damaged ones:
`RowGroupMetaData.column` lets an exception of C++ through. Between the last page and the footer is
room that no reader of Parquet looks at. There stand `MARK` and the CRC-32 of all that follows. A
footer is read where the length at the end of the file says: one of more than `_TAIL_BYTES` whose
length is damaged to a smaller one counts as that of an earlier release, and its parser refuses it.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import IO, Any

import pyarrow as pa
import pyarrow.parquet as pq
from zlib_ng.zlib_ng import crc32

MARK = b"tangoCRC"
_LENGTH = 8  # at the end of a file of Parquet: four bytes say how long its footer is, four are PAR1
_CHECKED = len(MARK) + 4

# Of a file of one clip's features: footer and all columns but the tokens, at 7B geometry.
_TAIL_BYTES = 256 * 2**10


@dataclass(frozen=True)
class Footer:
    """The end of a file.

    Attributes:
        metadata: What the footer says.
        tail: The last bytes of the file, the footer and what stands in front of it.
        start: Where they begin in the file.
    """

    metadata: pq.FileMetaData
    tail: bytes
    start: int


def read_footer(file: pa.NativeFile) -> Footer:
    """Read the end of a file, in one request unless its footer is long, and check it.

    A file without a checksum was written by an earlier release, or by another program; it is parsed
    as it is.

    Raises:
        pyarrow.ArrowException, OSError: If the file is damaged, or is no file of Parquet.
    """
    size = file.size()
    start = max(0, size - _TAIL_BYTES)
    tail = file.read_at(size - start, start)
    length = int.from_bytes(tail[-_LENGTH:-4], "little")
    if len(tail) < _LENGTH or tail[-4:] != b"PAR1" or length + _LENGTH > size:
        raise pa.ArrowInvalid(f"{size} bytes are no file of Parquet")
    if length + _LENGTH + _CHECKED > len(tail):
        start = max(0, size - length - _LENGTH - _CHECKED)
        tail = file.read_at(size - start, start)
    at = len(tail) - length - _LENGTH
    _check(tail, at)
    return Footer(pq.ParquetFile(pa.BufferReader(b"PAR1" + tail[at:])).metadata, tail, start)


def _check(tail: bytes, at: int) -> None:
    """Compare the footer, which begins at a place, with the checksum in front of it."""
    mark = tail.rfind(MARK)
    if mark < 0:
        return
    if mark + _CHECKED != at or tail[at - 4 : at] != _checksum(tail[at:]):
        raise pa.ArrowInvalid("its footer is not the one that was written")


def _checksum(footer: bytes) -> bytes:
    return crc32(footer).to_bytes(4, "little")


@contextmanager
def checked_writer(
    sink: IO[bytes] | pa.NativeFile, schema: pa.Schema, **options: Any
) -> Iterator[pq.ParquetWriter]:
    """A writer of Parquet whose file ends, with the block, in a footer with a checksum.

    Args:
        sink: Receives the file.
        schema: Its columns.
        options: Of `pyarrow.parquet.ParquetWriter`.
    """
    held = _HeldSink(sink)
    with pq.ParquetWriter(held, schema, **options) as writer:
        yield writer
        held.end = []
    end = b"".join(held.end)
    at = len(end) - _LENGTH - int.from_bytes(end[-_LENGTH:-4], "little")
    sink.write(end[:at] + MARK + _checksum(end[at:]) + end[at:])


class _HeldSink:
    """Passes on what is written, and keeps it once there is a list to keep it in."""

    closed = False

    def __init__(self, sink: IO[bytes] | pa.NativeFile) -> None:
        self._sink = sink
        self.end: list[bytes] | None = None

    def write(self, data: bytes) -> int:
        if self.end is None:
            self._sink.write(data)
        else:
            self.end.append(bytes(data))
        return len(data)

    def flush(self) -> None:
        pass

    def close(self) -> None:
        pass

    def readable(self) -> bool:
        return False

    def writable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return False
