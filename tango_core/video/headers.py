"""Facts read from the header of a video file."""

from __future__ import annotations

import os
import re
import struct
from typing import BinaryIO

from tango_core.local_files import open_regular

REVISION = "frames-2"

_INDEX_AT_MOST = 1 << 26
_HIGH_444_MP4 = re.compile(rb"avcC\x01\xf4")
_HIGH_444_MATROSKA = re.compile(rb"\x63\xa2[\x40-\xff][\x00-\xff]{0,3}?\x01\xf4", re.DOTALL)
_HIDDEN_FRAMES = re.compile(rb"VP[89]0")

_READ_AT_MOST = 1 << 20
_FIRST_BOXES = (b"ftyp", b"moov", b"mdat", b"free", b"wide", b"skip")
_BOXES_AT_MOST = 10_000  # limit for damaged files
# Version, flags, times, track, reserved and duration; layer, group, volume; then the matrix.
_TRACK_HEADER = re.compile(
    rb"tkhd(?:\x00[\x00-\xff]{23}|\x01[\x00-\xff]{35})[\x00-\xff]{16}([\x00-\xff]{36})"
)


def is_mirrored(path: str) -> bool:
    """Whether the header of a video file requests mirrored display (mp4 and QuickTime only).

    Raises:
        OSError: If the file cannot be read.
    """
    with open_regular(path) as file:
        return _mirrors(_movie_header(file))


def _mirrors(header: bytes) -> bool:
    """Whether a movie header has a track with a mirroring display matrix."""
    for found in _TRACK_HEADER.finditer(header):
        a, b, _, c, d, *_ = struct.unpack(">9i", found[1])  # (a, b, u), (c, d, v), (x, y, w)
        if a * d - b * c < 0:
            return True
    return False


def _movie_header(file: BinaryIO) -> bytes:
    """The beginning of the box `moov` of an mp4 or QuickTime file; empty if there is none."""
    file.seek(0)
    for number in range(_BOXES_AT_MOST):
        head = file.read(8)
        if len(head) < 8 or (number == 0 and head[4:] not in _FIRST_BOXES):
            return b""
        size, read = int.from_bytes(head[:4], "big"), 8
        if head[4:] == b"moov":
            return file.read(min(size, _READ_AT_MOST))
        if size == 1:
            size, read = int.from_bytes(file.read(8), "big"), 16
        if size < read:
            return b""
        file.seek(size - read, os.SEEK_CUR)
    return b""


def decoding_revision(path: str | os.PathLike[str]) -> str:
    """Revision of decoding behaviour that affects a file, for its identity; "" for most files.

    Affected are H.264 4:4:4 (by whichever encoder; its version lies in the stream), AVI with
    dropped frames, with codecs that have hidden ones, or without an index that tells, and mp4 that
    is displayed mirrored.
    """
    try:
        with open_regular(path) as file:
            return REVISION if _is_concerned(file) else ""
    except OSError:
        return ""


def _is_concerned(file: BinaryIO) -> bool:
    """Check whether the file is affected, by its format."""
    head = file.read(12)
    if head[:4] == b"RIFF" and head[8:12] == b"AVI ":
        return _has_gaps(file)
    if head[:4] == b"\x1a\x45\xdf\xa3":
        return _HIGH_444_MATROSKA.search(file.read(1 << 16)) is not None
    header = _movie_header(file)
    return _HIGH_444_MP4.search(header) is not None or _mirrors(header)


def _has_gaps(file: BinaryIO) -> bool:
    """Whether an AVI may have dropped frames."""
    index = b""
    while len(head := file.read(8)) == 8:
        name, size, content = head[:4], int.from_bytes(head[4:], "little"), file.tell()
        if name == b"LIST" and _HIDDEN_FRAMES.search(file.read(min(size, 1 << 12))):
            return True
        if name == b"idx1" and size <= _INDEX_AT_MOST:
            index = file.read(size)
        file.seek(content + size + size % 2)
    entries = [index[at : at + 16] for at in range(0, len(index) - 15, 16)]
    return not entries or any(e[2:4] in (b"dc", b"db") and not any(e[12:16]) for e in entries)
