"""Which files are decoded differently than by earlier versions, told from a few of their bytes.

What was cached of such a file before it was decoded right must not be used again; what was cached
of all other files must.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from typing import BinaryIO

from tango_core.local_files import open_regular
from tango_core.video.readers.orientation import mirrors, movie_header

REVISION = "frames-2"

_INDEX_AT_MOST = 1 << 26
_HIGH_444_MP4 = re.compile(rb"avcC\x01\xf4")
_HIGH_444_MATROSKA = re.compile(rb"\x63\xa2[\x40-\xff][\x00-\xff]{0,3}?\x01\xf4", re.DOTALL)
_HIDDEN_FRAMES = re.compile(rb"VP[89]0")


def decoding_revision(path: str | os.PathLike[str]) -> str:
    """Name the change that concerns a file, to be added to its identity; "" for most files.

    Concerned are H.264 4:4:4 (by whichever encoder; its version lies in the stream), AVI with
    dropped frames, with codecs that have hidden ones, or without an index that tells, and mp4 that
    is shown mirrored.
    """
    try:
        with open_regular(path) as file:
            return REVISION if _is_concerned(file) else ""
    except OSError:
        return ""


def _is_concerned(file: BinaryIO) -> bool:
    """Look at the file by its format."""
    head = file.read(12)
    if head[:4] == b"RIFF" and head[8:12] == b"AVI ":
        return _has_gaps(file)
    if head[:4] == b"\x1a\x45\xdf\xa3":
        return _HIGH_444_MATROSKA.search(file.read(1 << 16)) is not None
    header = movie_header(file)
    return _HIGH_444_MP4.search(header) is not None or mirrors(header)


def _has_gaps(file: BinaryIO) -> bool:
    """Whether an AVI may have fewer frames than numbers."""
    index = b""
    for name, size in _chunks(file):
        if name == b"LIST" and _HIDDEN_FRAMES.search(file.read(min(size, 1 << 12))):
            return True
        if name == b"idx1" and size <= _INDEX_AT_MOST:
            index = file.read(size)
    entries = [index[at : at + 16] for at in range(0, len(index) - 15, 16)]
    return not entries or any(e[2:4] in (b"dc", b"db") and not any(e[12:16]) for e in entries)


def _chunks(file: BinaryIO) -> Iterator[tuple[bytes, int]]:
    """Name and size of every chunk, the file standing at its content."""
    while len(head := file.read(8)) == 8:
        size = int.from_bytes(head[4:], "little")
        content = file.tell()
        yield head[:4], size
        file.seek(content + size + size % 2)
