"""The structure of a file: boxes, elements, chunks, packets and tags, found by a few lines each.

Only what a mutation needs to know: where a piece begins and ends, and where its size is written.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Literal

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
_NAMES = {
    "1a45dfa3": "EBML",
    "18538067": "Segment",
    "1549a966": "Info",
    "1654ae6b": "Tracks",
    "ae": "TrackEntry",
    "1c53bb6b": "Cues",
    "b3": "CueTime",
    "f1": "CueClusterPosition",
    "1f43b675": "Cluster",
    "e7": "Timestamp",
    "a3": "SimpleBlock",
    "23e383": "DefaultDuration",
    "63a2": "CodecPrivate",
}
_TS_PACKET = 188


@dataclass(frozen=True)
class Piece:
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
    return [whole, *_reader_of(data)(data)]


def _reader_of(data: bytes) -> Callable[[bytes], Iterator[Piece]]:
    if data[4:8] == b"ftyp":
        return lambda d: _boxes(d, 0, len(d))
    if data[:4] == b"\x1a\x45\xdf\xa3":
        return lambda d: _elements(d, 0, len(d))
    if data[:4] == b"RIFF":
        return lambda d: _chunks(d, 0, len(d))
    if data[:3] == b"FLV":
        return _tags
    if data[:1] == b"\x47" and data[_TS_PACKET : _TS_PACKET + 1] == b"\x47":
        return _packets
    if data[:4] == b"\x00\x00\x01\xba":
        return _start_codes
    return lambda d: iter(())


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


def _tags(data: bytes) -> Iterator[Piece]:
    """FLV: a header of nine bytes, then tags of 11 bytes of header and four of size behind."""
    at = 13
    while at + 15 <= len(data):
        size = int.from_bytes(data[at + 1 : at + 4], "big")
        if at + 15 + size > len(data):
            return
        yield Piece(f"tag {data[at] & 31}", at, at + 11, at + 15 + size, at + 1, 3)
        at += 15 + size


def _packets(data: bytes) -> Iterator[Piece]:
    """MPEG-TS: packets of 188 bytes; those that begin a frame have a name of their own."""
    for at in range(0, len(data) - _TS_PACKET + 1, _TS_PACKET):
        begins = data[at + 1] & 0x40
        yield Piece("first packet" if begins else "packet", at, at + 4, at + _TS_PACKET)


def _start_codes(data: bytes) -> Iterator[Piece]:
    """MPEG-PS: what lies between two start codes of its packs and streams."""
    starts = []
    at = data.find(b"\x00\x00\x01")
    while at >= 0:
        if at + 3 < len(data) and data[at + 3] >= 0xB9:
            starts.append(at)
        at = data.find(b"\x00\x00\x01", at + 3)
    for start, end in zip(starts, [*starts[1:], len(data)], strict=True):
        yield Piece(f"code {data[start + 3]:02x}", start, start + 4, end, start + 4, 2)
