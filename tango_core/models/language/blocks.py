"""A clip as blocks: the tokens of one temporal position after the other, with text around each.

Qwen3-VL writes the time before every pair of frames, InternVL the number before every frame. The
text of a block is the clip's, not the question's: it stands in the same place for every question,
no method drops it, and `model.empty_blocks` says what becomes of it where a block keeps no token.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from tango_core.models.language.prompt import Span, TextTokens, VisualTokens
from tango_core.models.options import EmptyBlocks
from tango_core.types import CompressedVideo


@dataclass(frozen=True)
class BlockText:
    """Token ids around the visual tokens of one temporal position.

    Attributes:
        before: In front of them.
        after: Behind them.
    """

    before: tuple[int, ...]
    after: tuple[int, ...] = ()

    def __len__(self) -> int:
        return len(self.before) + len(self.after)


def lay_out_blocks(
    video: CompressedVideo, texts: Sequence[BlockText], empty: EmptyBlocks = "keep"
) -> tuple[Span, ...]:
    """The spans of a clip.

    Args:
        video: K kept tokens of (T, H, W).
        texts: One per temporal position, T.
        empty: Whether the text of a block stays that keeps no token.

    Returns:
        Text and visual spans in turn; neighbouring texts are one span.

    Raises:
        ValueError: If there is not one text per temporal position.
    """
    bounds = _bounds(video, texts)
    spans: list[Span] = []
    pending: tuple[int, ...] = ()
    indices = video.indices.cpu()
    for text, start, stop in zip(texts, bounds[:-1], bounds[1:], strict=True):
        if start == stop and empty == "drop":
            continue
        pending += text.before
        if start < stop:
            if pending:
                spans.append(TextTokens(pending, of_clip=True))
            rows = slice(start, stop)
            companions = None if video.companions is None else video.companions[rows]
            spans.append(VisualTokens(video.tokens[rows], indices[rows], video.grid, companions))
            pending = ()
        pending += text.after
    if pending:
        spans.append(TextTokens(pending, of_clip=True))
    return tuple(spans)


def block_positions(
    video: CompressedVideo,
    texts: Sequence[BlockText],
    empty: EmptyBlocks,
    place: Callable[[Tensor], Tensor],
    extent: int,
) -> tuple[Tensor, int]:
    """Positions of those spans, every token where it is in the full clip.

    Args:
        video: As in `lay_out_blocks`.
        texts: As in `lay_out_blocks`.
        empty: As in `lay_out_blocks`.
        place: (n,) int64 positions in the grid of a frame, h * W + w -> (..., n) int64 positions
            counted from where the block's tokens begin.
        extent: By how much the text behind a block's tokens is further than their beginning,
            whatever was dropped.

    Returns:
        (..., S) int64 counted from where the clip begins, and where text goes on behind it.
    """
    bounds = _bounds(video, texts)
    cells = video.indices.cpu() % (video.grid[1] * video.grid[2])
    axes = place(cells[:0]).shape[:-1]
    pieces: list[Tensor] = [torch.empty((*axes, 0), dtype=torch.int64)]
    at = 0
    for text, start, stop in zip(texts, bounds[:-1], bounds[1:], strict=True):
        behind = at + len(text.before) + extent
        if start < stop or empty == "keep":
            pieces.append(_counted(at, len(text.before), axes))
            pieces.append(place(cells[start:stop]) + at + len(text.before))
            pieces.append(_counted(behind, len(text.after), axes))
        at = behind + len(text.after)
    return torch.cat(pieces, dim=-1), at


def _bounds(video: CompressedVideo, texts: Sequence[BlockText]) -> list[int]:
    """(T + 1) ends of the blocks among the kept tokens."""
    num_blocks, height, width = video.grid
    if len(texts) != num_blocks:
        raise ValueError(
            f"a clip of {num_blocks} temporal positions needs as many texts, got {len(texts)}"
        )
    starts = torch.arange(num_blocks + 1) * (height * width)
    return torch.searchsorted(video.indices.cpu(), starts).tolist()


def _counted(start: int, count: int, axes: Sequence[int]) -> Tensor:
    """Text: the same number on all axes, one more per token."""
    return (torch.arange(count) + start).expand(*axes, count)
