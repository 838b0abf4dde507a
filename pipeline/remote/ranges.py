"""An object of a store as a file of which parts are read."""

from __future__ import annotations

import io
from collections.abc import Callable
from typing import Any


class Ranges(io.RawIOBase):
    """An object as a file: every read is one request of its own, repeated if need be.

    Args:
        read_range: First byte and the one behind the last -> the bytes.
        size: Of the object.
    """

    def __init__(self, read_range: Callable[[int, int], bytes], size: int) -> None:
        self._read_range, self._size, self._at = read_range, size, 0

    def readable(self) -> bool:
        """It is."""
        return True

    def seekable(self) -> bool:
        """It is."""
        return True

    def tell(self) -> int:
        """Where the next read begins."""
        return self._at

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        """Let the next read begin elsewhere."""
        base = {io.SEEK_SET: 0, io.SEEK_CUR: self._at, io.SEEK_END: self._size}[whence]
        self._at = max(0, base + offset)
        return self._at

    def read(self, size: int | None = -1) -> bytes:
        """So many bytes, or all that are left."""
        stop = self._size if size is None or size < 0 else min(self._size, self._at + size)
        data = self._read_range(self._at, stop)
        self._at += len(data)
        return data

    def readall(self) -> bytes:
        """All bytes that are left."""
        return self.read()

    def readinto(self, buffer: Any) -> int:
        """Fill a buffer."""
        data = self.read(len(buffer))
        buffer[: len(data)] = data
        return len(data)
