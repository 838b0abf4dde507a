"""Stages as functions of many rows, whether they work on one row at a time or on several."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator

from pipeline.rows import Row

RowStream = Callable[[Iterable[Row]], Iterator[Row]]
"""Takes rows one by one, when it has room for them, and gives each back when it is done."""


def stream_of(stage: Callable[[Row], Row]) -> RowStream:
    """The stage's own `stream`, or one row after the other.

    Args:
        stage: A function, or an object that may also have a method `stream` of many rows.
    """
    own: RowStream | None = getattr(stage, "stream", None)

    def one_by_one(rows: Iterable[Row]) -> Iterator[Row]:
        return map(stage, rows)

    return one_by_one if own is None else own
