"""The part of a job that one of several independent jobs does (`--shard i/n`)."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from jobs.results.facts import ShardSize
from tango_core.types import VideoItem


class ShardCount:
    """Picks the clips of a shard, and counts those of all.

    Args:
        shard: `i/n`, or `None` for the whole job.
    """

    def __init__(self, shard: str | None) -> None:
        self._index, self._number = map(int, (shard or "0/1").split("/"))
        self._clips = [0] * self._number
        self._questions = [0] * self._number

    def own(self, items: Iterable[VideoItem]) -> Iterator[VideoItem]:
        """Every n-th clip of a benchmark, from the i-th."""
        for position, item in enumerate(items):
            self._clips[position % self._number] += 1
            self._questions[position % self._number] += len(item.questions)
            if position % self._number == self._index:
                yield item

    def sizes(self) -> tuple[ShardSize, ...]:
        """Sizes of all shards, once all clips have been listed; nothing for a whole job."""
        sizes = map(ShardSize, self._clips, self._questions)
        return tuple(sizes) if self._number > 1 else ()
