"""Mutations of bytes: drawn from a seed, said in terms of a file's pieces, applied one by one."""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import NamedTuple

from tests.chaos.fuzz.pieces import Piece, pieces_of

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
