"""The time that Qwen3-VL writes before every pair of frames."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

from tango_core.models.language.blocks import BlockText


def stamp(seconds: float) -> str:
    """Text of a time; halves of the last digit are rounded as Python does, 0.25 to 0.2."""
    return f"<{seconds:.1f} seconds>"


def block_texts(
    seconds: Sequence[float],
    tokenize: Callable[[str], tuple[int, ...]],
    marks: tuple[int, int],
) -> list[BlockText]:
    """Text around the tokens of every temporal position.

    Args:
        seconds: (T,) middles of the pairs of frames.
        tokenize: Text -> token ids. A time is cut alone as it is between two marks.
        marks: Ids of the marks before and after the tokens.
    """
    start, end = marks
    return [BlockText((*tokenize(stamp(one)), start), (end,)) for one in seconds]


def joined_left(
    text: str, first: str, tokenize: Callable[[str], tuple[int, ...]]
) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Cut the text before the clip and the first time into tokens.

    No mark stands between the two, so a token may hold characters of both, such as `.<`; it is
    counted as text before the clip.

    Args:
        text: Before the clip.
        first: The first time.
        tokenize: Text -> token ids.

    Returns:
        Ids of the text, and ids of the time.
    """
    together, alone = tokenize(text + first), tokenize(first)
    common = 0
    longest = min(len(together), len(alone))
    while common < longest and together[-1 - common] == alone[-1 - common]:
        common += 1
    return together[: len(together) - common], together[len(together) - common :]


def with_first(texts: Sequence[BlockText], at: int, ids: tuple[int, ...]) -> list[BlockText]:
    """The texts with other ids for the time of one temporal position; its mark stays."""
    changed = replace(texts[at], before=(*ids, texts[at].before[-1]))
    return [*texts[:at], changed, *texts[at + 1 :]]
