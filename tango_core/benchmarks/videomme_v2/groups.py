"""The groups of Video-MME-v2: four questions about one video, in an order that means something."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from tango_core.benchmarks.annotations.tables import Row, is_missing, text_of
from tango_core.metrics.metric import (
    GROUP_SIZE,
    LOGIC,
    POSITION,
    RELEVANCE,
    STRUCTURE,
    STRUCTURES,
    TYPE,
    structure_of,
)

# Columns that the release fills in a group's last row.
HEADS = ("level", "second_head", "third_head")


@dataclass
class _Group:
    """What the rows of one video say together."""

    kinds: set[tuple[str, str]] = field(default_factory=set)
    positions: list[int] = field(default_factory=list)
    heads: dict[str, str] = field(default_factory=dict)


class Groups:
    """All groups of a release.

    Args:
        rows: Rows of the table.
        videos: Video of every row.
    """

    def __init__(self, rows: Sequence[Row], videos: Sequence[str]) -> None:
        self._by_video: dict[str, _Group] = {}
        self._positions: list[int] = []
        for row, video in zip(rows, videos, strict=True):
            group = self._by_video.setdefault(video, _Group())
            position = _position(row, len(group.positions) + 1)
            group.positions.append(position)
            group.kinds.add(_kind(row))
            self._positions.append(position)
            for name in HEADS:
                if not is_missing(row.get(name)) and (
                    position == GROUP_SIZE or name not in group.heads
                ):
                    group.heads[name] = str(row[name])
        self._videos = list(videos)

    def of(self, index: int) -> dict[str, str]:
        """The groups that a row's question is counted in.

        Level and heads are those of the last row of its group, for all four.

        Raises:
            ValueError: If the row does not fit into a group of four.
        """
        group, position = self._by_video[self._videos[index]], self._positions[index]
        if not 1 <= position <= GROUP_SIZE:
            raise ValueError(f"question_id must end in 1 to {GROUP_SIZE}, got {position}")
        if group.positions.count(position) > 1:
            raise ValueError(f"question {position} of the video occurs twice")
        if len(group.kinds) > 1:
            raise ValueError("the questions of the video differ in group_type or group_structure")
        ((kind, structure),) = group.kinds
        if kind not in (RELEVANCE, LOGIC):
            raise ValueError(f"group_type must be {RELEVANCE} or {LOGIC}, got {kind!r}")
        if kind == LOGIC and structure not in STRUCTURES:
            raise ValueError(
                f"group_structure must be one of {', '.join(STRUCTURES)}, got {structure!r}"
            )
        structured = {STRUCTURE: structure} if kind == LOGIC else {}
        return {TYPE: kind, **structured, POSITION: str(position), **group.heads}

    def notes(self, index: int) -> list[str]:
        """What is odd about the group of a row."""
        there = len(self._by_video[self._videos[index]].positions)
        if there == GROUP_SIZE:
            return []
        return [f"{there} of {GROUP_SIZE} questions of the group; it has no group score"]


def stated(row: Row, name: str) -> str | None:
    """What a row says in a column, as it is written; `None` for nothing."""
    return None if is_missing(row.get(name)) else str(row[name])


def _position(row: Row, otherwise: int) -> int:
    """Place of a question in its group from 1, as its id says ("001-3"); -1 if that says nothing.

    Tables without ids have the questions of a group in their order.
    """
    if is_missing(row.get("question_id")):
        return otherwise
    last = str(row["question_id"]).rpartition("-")[2]
    return int(last) if last.isdecimal() else -1


def _kind(row: Row) -> tuple[str, str]:
    """Type and structure of a row's group."""
    kind = text_of(row, TYPE).strip().lower()
    return kind, structure_of(str(row.get(STRUCTURE))) if kind == LOGIC else ""
