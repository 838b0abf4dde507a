"""Several files as one that is read from any byte on."""

from __future__ import annotations

import io
from collections.abc import Sequence
from pathlib import Path
from typing import Any, BinaryIO


class Pieces(io.RawIOBase):
    """Files joined in their order; those before the first byte that is read need not be there.

    Args:
        files: Each with its size in bytes.
    """

    def __init__(self, files: Sequence[tuple[Path, int]]) -> None:
        self._files = list(files)
        self._size = sum(size for _, size in files)
        self._at = 0
        self._open: tuple[int, BinaryIO] | None = None

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

    def readinto(self, buffer: Any) -> int:
        """Fill a buffer, at most to the end of a piece."""
        start = 0
        for number, (path, size) in enumerate(self._files):
            if self._at < start + size:
                stream = self._stream(number, path)
                stream.seek(self._at - start)
                wanted = min(len(buffer), start + size - self._at)
                data = stream.read(wanted)
                buffer[: len(data)] = data
                self._at += len(data)
                return len(data)
            start += size
        return 0

    def close(self) -> None:
        """Close the piece that is open."""
        if self._open is not None:
            self._open[1].close()
            self._open = None
        super().close()

    def _stream(self, number: int, path: Path) -> BinaryIO:
        """The file of a piece; the one that was open before is closed."""
        if self._open is None or self._open[0] != number:
            if self._open is not None:
                self._open[1].close()
            self._open = (number, path.open("rb"))
        return self._open[1]
