"""The pieces of a file, and mutations of its bytes: drawn from a seed, in terms of its pieces."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Sequence
from typing import Literal, NamedTuple

ANYWHERE = ("bit", "byte", "word", "nudge", "zero", "noise", "cut", "insert", "delete")
ON_PIECES = ("size", "name", "remove", "double", "swap", "word", "nudge", "bit", "zero")
_WORDS = (0, 1, 2, 0x7F, 0xFF, 0x7FFF, 0xFFFF, 0x7FFFFFFF, 0x80000000, 0xFFFFFFFE, 0xFFFFFFFF)


class Outcome(NamedTuple):
    """How a case ended.

    Attributes:
        kind: What was damaged: `videos` or `files`.
        about: The file, e.g. `"h264.mp4"`.
        what: How it ended, in two or three words, to be counted.
        problem: What must not happen; "" if all is right.
        mutations: What was done to the file.
    """

    kind: str
    about: str
    what: str
    problem: str = ""
    mutations: tuple[object, ...] = ()


class Mutation(NamedTuple):
    """One change.

    Attributes:
        how: One of `ANYWHERE` or `ON_PIECES`.
        piece: Name of the piece that it changes.
        nth: Which one of that name, modulo how many there are.
        at: Place in it, from 0 to 1.
        value: What is written, or how many bytes; means what `how` says.
    """

    how: str
    piece: str = "file"
    nth: int = 0
    at: float = 0.0
    value: int = 0


def draw(data: bytes, dice: random.Random) -> tuple[Mutation, ...]:
    """One to three mutations of a file."""
    number = dice.choices((1, 2, 3), (7, 2, 1))[0]
    return tuple(_draw_one(data, dice) for _ in range(number))


def _draw_one(data: bytes, dice: random.Random) -> Mutation:
    pieces = pieces_of(data)[1:]
    at, value = round(dice.random(), 4), dice.randrange(1 << 32)
    if not pieces or dice.random() < 0.35:
        return Mutation(dice.choice(ANYWHERE), "file", 0, at, value)
    name = dice.choice(sorted({piece.name for piece in pieces}))
    nth = dice.randrange(sum(piece.name == name for piece in pieces))
    return Mutation(dice.choice(ON_PIECES), name, nth, at, value)


def apply(data: bytes, mutations: Sequence[Mutation]) -> bytes:
    """The file with all changes; a piece that is not there any more is left alone."""
    for mutation in mutations:
        found = [piece for piece in pieces_of(data) if piece.name == mutation.piece]
        if found:
            data = _changed(data, found[mutation.nth % len(found)], mutation)
    return data


def _changed(data: bytes, piece: Piece, mutation: Mutation) -> bytes:
    value, size = mutation.value, piece.end - piece.body
    at = piece.body + min(int(mutation.at * size), max(0, size - 1))
    match mutation.how:
        case "bit":
            return _with(data, at, bytes([data[at] ^ 1 << value % 8]) if at < len(data) else b"")
        case "byte":
            return _with(data, at, bytes([value % 256]))
        case "word" | "nudge":
            at = piece.body + (at - piece.body) // 4 * 4
            old = int.from_bytes(data[at : at + 4], piece.order)
            near = old + (1, -1, 2, -2, 16, -16, 1000, -1000)[value % 8]
            new = _WORDS[value % len(_WORDS)] if mutation.how == "word" else near
            return _with(data, at, (new % (1 << 32)).to_bytes(4, piece.order))
        case "zero":
            return _with(data, at, bytes(min(1 + value % 600, piece.end - at)))
        case "noise":
            return _with(data, at, random.Random(value).randbytes(min(1 + value % 200, size)))
        case "cut":
            return data[:at]
        case "insert":
            return data[:at] + random.Random(value).randbytes(1 + value % 40) + data[at:]
        case "delete":
            return data[:at] + data[at + 1 + value % 200 :]
        case "size" if piece.size_at >= 0:
            return _resized(data, piece, value)
        case "name":
            at = piece.start + (4 if data[4:8] == b"ftyp" else 0) + value % 4
            return _with(data, at, bytes([(value >> 8) % 256]))
        case "remove":
            return data[: piece.start] + data[piece.end :]
        case "double":
            return data[: piece.end] + data[piece.start :]
        case "swap":
            return _swapped(data, piece)
    return data


def _with(data: bytes, at: int, new: bytes) -> bytes:
    return (data[:at] + new + data[at + len(new) :])[: len(data)]


def _resized(data: bytes, piece: Piece, value: int) -> bytes:
    """Another size than the piece has: near, none, one, enormous."""
    at, number = piece.size_at, piece.size_bytes
    old = int.from_bytes(data[at : at + number], piece.order)
    new = (old + 1, old - 1, old * 2, 0, 1, (1 << 8 * number) - 1, value, old + 8, old - 8)[
        value % 9
    ]
    return _with(data, at, (new % (1 << 8 * number)).to_bytes(number, piece.order))


def _swapped(data: bytes, piece: Piece) -> bytes:
    """This piece and the next one behind it, in the other order."""
    behind = [other for other in pieces_of(data)[1:] if other.start >= piece.end]
    if not behind:
        return data
    other = behind[0]
    between = data[piece.end : other.start]
    one, two = data[piece.start : piece.end], data[other.start : other.end]
    return data[: piece.start] + two + between + one + data[other.end :]


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
