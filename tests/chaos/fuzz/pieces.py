"""The structure of a file: boxes, elements, chunks and packets, of MP4, Matroska, AVI and MPEG-TS.

Only what a mutation needs to know: where a piece begins and ends, and where its size is written.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Literal, NamedTuple

Order = Literal["big", "little"]

_BOXES_OF_BOXES = (b"moov", b"trak", b"mdia", b"minf", b"stbl", b"edts", b"dinf", b"udta", b"moof")
_ELEMENTS_OF_ELEMENTS = (
    "18538067",
    "1654ae6b",
    "ae",
    "e0",
    "1c53bb6b",
    "bb",
    "b7",
    "1f43b675",
    "a0",
)
_NAMES = {"1c53bb6b": "Cues", "b3": "CueTime", "1f43b675": "Cluster", "e7": "Timestamp"}
_NAMES |= {"a3": "SimpleBlock", "23e383": "DefaultDuration", "63a2": "CodecPrivate"}
_TS_PACKET = 188


class Piece(NamedTuple):
    """A stretch of a file with a name.

    Attributes:
        name: Of its kind, e.g. `"stts"` or `"Cues"`; `"file"` for all of it.
        start: First byte of its header.
        body: First byte of its content.
        end: One past its last byte.
        size_at: First byte of the number that says how long it is; -1 for none.
        size_bytes: Bytes of that number.
        order: Byte order of its numbers.
    """

    name: str
    start: int
    body: int
    end: int
    size_at: int = -1
    size_bytes: int = 0
    order: Order = "big"


def pieces_of(data: bytes) -> list[Piece]:
    """All pieces of a file, the whole first, in the order of their first bytes."""
    whole = Piece("file", 0, 0, len(data))
    return [whole, *_reader_of(data)(data, 0, len(data))]


def _reader_of(data: bytes) -> Callable[[bytes, int, int], Iterator[Piece]]:
    if data[4:8] == b"ftyp":
        return _boxes
    if data[:4] == b"\x1a\x45\xdf\xa3":
        return _elements
    if data[:4] == b"RIFF":
        return _chunks
    if data[:1] == b"\x47" and data[_TS_PACKET : _TS_PACKET + 1] == b"\x47":
        return _packets
    return lambda data, at, end: iter(())


def _boxes(data: bytes, at: int, end: int) -> Iterator[Piece]:
    """ISO 14496-12: size, type, content."""
    while at + 8 <= end:
        size = int.from_bytes(data[at : at + 4], "big")
        if size < 8 or at + size > end:
            return
        kind = data[at + 4 : at + 8]
        yield Piece(kind.decode("latin-1"), at, at + 8, at + size, at, 4)
        if kind in _BOXES_OF_BOXES:
            yield from _boxes(data, at + 8, at + size)
        at += size


def _number(data: bytes, at: int) -> tuple[int, int]:
    """Value and length of an EBML size."""
    length = 9 - data[at].bit_length() if at < len(data) and data[at] else 9
    value = int.from_bytes(data[at : at + length], "big") & ((1 << 7 * length) - 1)
    return value, length


def _elements(data: bytes, at: int, end: int) -> Iterator[Piece]:
    """RFC 8794: id, size, content."""
    while at < end:
        _, id_bytes = _number(data, at)
        size, size_bytes = _number(data, at + id_bytes)
        if id_bytes > 4 or size_bytes > 8:
            return
        body = at + id_bytes + size_bytes
        stop = end if size == (1 << 7 * size_bytes) - 1 else body + size
        if stop > end:
            return
        kind = data[at : at + id_bytes].hex()
        yield Piece(_NAMES.get(kind, kind), at, body, stop, at + id_bytes, size_bytes)
        if kind in _ELEMENTS_OF_ELEMENTS:
            yield from _elements(data, body, stop)
        at = stop


def _chunks(data: bytes, at: int, end: int) -> Iterator[Piece]:
    """RIFF: name, size in little-endian, content, filled up to an even length."""
    while at + 8 <= end:
        size = int.from_bytes(data[at + 4 : at + 8], "little")
        name, body = data[at : at + 4], at + 8
        if body + size > end:
            return
        yield Piece(name.decode("latin-1"), at, body, body + size, at + 4, 4, "little")
        if name in (b"RIFF", b"LIST"):
            yield from _chunks(data, body + 4, body + size)
        at = body + size + size % 2


def _packets(data: bytes, at: int, end: int) -> Iterator[Piece]:
    """MPEG-TS: packets of 188 bytes; those that begin a frame have a name of their own."""
    while at + _TS_PACKET <= end:
        begins = data[at + 1] & 0x40
        yield Piece("first packet" if begins else "packet", at, at + 4, at + _TS_PACKET)
        at += _TS_PACKET
