"""Stages as functions of many clips, whether they work on one at a time or on several."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Any

from pipeline.rows import Clip, Result

Record = Clip | Result
"""What a stage gives back: a clip, or of the last stage a result."""

Stream = Callable[[Iterable[Clip]], Iterator[Any]]
"""Takes clips one by one, when it has room for them, and gives each back when it is done."""


def stream_of(stage: Callable[[Clip], Record]) -> Stream:
    """The stage's own `stream`, or one clip after the other.

    Args:
        stage: A function, or an object that may also have a method `stream` of many clips.
    """
    own: Stream | None = getattr(stage, "stream", None)
    return own or (lambda clips: map(stage, clips))
