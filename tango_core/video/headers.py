"""Facts read from the header of a video file."""

from __future__ import annotations

import os
import re
import struct
from collections.abc import Iterator
from typing import BinaryIO

import numpy as np
import numpy.typing as npt

from tango_core.errors import InputError
from tango_core.local_files import open_regular

# Part of the fingerprint of the files that `decoding_revision` lists, so that tokens cached by
# versions that decoded them otherwise are not used.
REVISION = "frames-2"

_INDEX_AT_MOST = 1 << 26  # bytes
# Codec configuration of H.264 with the profile High 4:4:4 Predictive (0xf4).
_HIGH_444_MP4 = re.compile(rb"avcC\x01\xf4")
_HIGH_444_MATROSKA = re.compile(rb"\x63\xa2[\x40-\xff][\x00-\xff]{0,3}?\x01\xf4", re.DOTALL)
# Names of codecs whose streams have frames that are decoded and not displayed.
_HIDDEN_FRAMES = re.compile(rb"VP[89]0")

_READ_AT_MOST = 1 << 20  # bytes
_FIRST_BOXES = (b"ftyp", b"moov", b"mdat", b"free", b"wide", b"skip")
_BOXES_AT_MOST = 10_000  # limits for damaged files
_SAMPLES_AT_MOST = 1 << 24
_NOTHING = memoryview(b"")
Ticks = npt.NDArray[np.int64]
# Box `tkhd`: version, flags, times, track number and duration (version 1 has 64-bit times); layer,
# group and volume; then the display matrix, which is captured.
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


def _mirrors(header: memoryview) -> bool:
    """Whether a movie header has a track with a mirroring display matrix."""
    for found in _TRACK_HEADER.finditer(header):
        a, b, _, c, d, *_ = struct.unpack(">9i", found[1])  # (a, b, u), (c, d, v), (x, y, w)
        if a * d - b * c < 0:
            return True
    return False


def sample_times(path: str, track: int) -> tuple[Ticks, Ticks] | None:
    """Durations and composition offsets of the samples of a track of an mp4 or QuickTime file.

    Args:
        path: The file.
        track: Number of the track.

    Returns:
        Two (n,) arrays in ticks of the track, in the order of decoding; `None` if the file does not
        hold them in one table (fragments, damage).

    Raises:
        OSError: If the file cannot be read.
    """
    with open_regular(path) as file:
        movie = _movie_header(file, _INDEX_AT_MOST)
    try:
        for box in _boxes(movie, b"trak"):
            header = next(_boxes(box, b"tkhd"))
            if int.from_bytes(header[20:24] if header[0] else header[12:16]) == track:
                for name in (b"mdia", b"minf", b"stbl"):
                    box = next(_boxes(box, name))
                durations = _run_lengths(next(_boxes(box, b"stts")))
                offsets = next(_boxes(box, b"ctts"), None)
                no_offsets = np.zeros_like(durations)
                return durations, no_offsets if offsets is None else _run_lengths(offsets)
    except (StopIteration, ValueError, IndexError):
        return None
    return None


def _boxes(content: memoryview, name: bytes) -> Iterator[memoryview]:
    """Yield the contents of the boxes called `name` at the top level of `content`."""
    while len(content) >= 8:
        size, begin = int.from_bytes(content[:4]), 8
        if size == 1:
            size, begin = int.from_bytes(content[8:16]), 16
        if size < begin:
            return
        if content[4:8] == name:
            yield content[begin:size]
        content = content[size:]


def _run_lengths(table: memoryview) -> Ticks:
    """(n,) values of a run-length table: version and flags, number of rows, (count, value) rows."""
    rows = np.frombuffer(table[8:], ">i4", 2 * int.from_bytes(table[4:8])).reshape(-1, 2)
    if rows[:, 0].min(initial=0) < 0 or rows[:, 0].sum() > _SAMPLES_AT_MOST:
        raise InputError("damaged")
    return np.repeat(rows[:, 1], rows[:, 0]).astype(np.int64)


def _movie_header(file: BinaryIO, at_most: int = _READ_AT_MOST) -> memoryview:
    """The beginning of the box `moov` of an mp4 or QuickTime file; empty if there is none."""
    file.seek(0)
    for number in range(_BOXES_AT_MOST):
        head = file.read(8)
        if len(head) < 8 or (number == 0 and head[4:] not in _FIRST_BOXES):
            return _NOTHING
        size, read = int.from_bytes(head[:4], "big"), 8
        if size == 1:
            size, read = int.from_bytes(file.read(8), "big"), 16
        if head[4:] == b"moov":
            length = at_most if size == 0 else max(size - read, 0)  # 0: to the end of the file
            return memoryview(file.read(min(length, at_most)))
        if size < read:
            return _NOTHING
        file.seek(size - read, os.SEEK_CUR)
    return _NOTHING


def decoding_revision(path: str | os.PathLike[str]) -> str:
    """`REVISION` for files that earlier versions of this package decoded differently, else "".

    These are: H.264 4:4:4 (of any encoder, because its version is not in the header); AVI with
    dropped frames, with a codec that has frames that are not displayed (VP8, VP9), or without an
    index that lists dropped frames; and mp4 that is displayed mirrored.
    """
    try:
        with open_regular(path) as file:
            return REVISION if _is_concerned(file) else ""
    except OSError:
        return ""


def _is_concerned(file: BinaryIO) -> bool:
    """Whether a file is one of those that `decoding_revision` lists."""
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
