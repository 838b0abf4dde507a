"""Turn and mirror pictures as their display matrix says: phones film sideways, some in a mirror."""

from __future__ import annotations

import os
import re
import struct
from typing import BinaryIO

import numpy as np

from tango_core.local_files import open_regular
from tango_core.video.readers.base import Picture

_READ_AT_MOST = 1 << 20
_FIRST_BOXES = (b"ftyp", b"moov", b"mdat", b"free", b"wide", b"skip")
_BOXES_AT_MOST = 10_000  # a damaged file may look like millions
# Version, flags, times, track, reserved and duration; layer, group, volume; then the matrix.
_TRACK_HEADER = re.compile(
    rb"tkhd(?:\x00[\x00-\xff]{23}|\x01[\x00-\xff]{35})[\x00-\xff]{16}([\x00-\xff]{36})"
)


def upright(picture: Picture, rotation: float, *, mirrored: bool) -> Picture:
    """The picture as a player shows it.

    Args:
        picture: (h, w, 3) uint8, as it is stored.
        rotation: Degrees by which PyAV says to turn it; whether it is mirrored it says only in
            `side_data`, which keeps every frame that was asked for it, with its threads.
        mirrored: Whether the file says so.
    """
    if mirrored:
        # Mirroring negates the first column, which says the angle: half a turn more.
        return np.rot90(picture[:, ::-1], round((rotation + 180) / 90) % 4)
    turns = round(rotation / 90) % 4
    return np.rot90(picture, turns) if turns else picture


def is_mirrored(path: str) -> bool:
    """Whether the header of a video file says that it is shown mirrored; mp4 and QuickTime alone.

    Raises:
        OSError: If the file cannot be read.
    """
    with open_regular(path) as file:
        return mirrors(movie_header(file))


def mirrors(header: bytes) -> bool:
    """Whether a movie header has a track that is shown mirrored."""
    matrices = (struct.unpack(">9i", found[1]) for found in _TRACK_HEADER.finditer(header))
    return any(map(_mirrors, matrices))


def movie_header(file: BinaryIO) -> bytes:
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


def _mirrors(matrix: tuple[int, ...]) -> bool:
    """Whether a display matrix ((a, b, u), (c, d, v), (x, y, w)) turns left into right."""
    a, b, _, c, d, *_ = matrix
    return a * d - b * c < 0
