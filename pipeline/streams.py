"""Call stages on streams of clips, whether they process one clip at a time or several."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Any

from pipeline.rows import Clip, Result

Record = Clip | Result
"""Output of a stage: a clip, or a result from the last stage."""

Stream = Callable[[Iterable[Clip]], Iterator[Any]]
"""Function that consumes clips as it has capacity, and yields each one when it is finished."""


def stream_of(stage: Callable[[Clip], Record]) -> Stream:
    """The `stream` method of a stage if it has one, else a function that maps clip by clip.

    Args:
        stage: A function, or an object that may have a method `stream`.
    """
    own: Stream | None = getattr(stage, "stream", None)
    return own or (lambda clips: map(stage, clips))
