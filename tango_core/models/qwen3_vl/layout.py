"""Prompt layout of Qwen3-VL and Qwen3.5: a time stamp and markers around every pair of frames.

Markers are the tokens `<|vision_start|>` and `<|vision_end|>`. Positions are three-dimensional
(time, row, column). A text token advances all three axes. The visual tokens of a block start at the
position after its text and differ only in row and column; only the text states the time. The next
text starts after the longer side of the grid. Positions are computed here, because transformers
keeps the offset of the last call as state; its rotary embedding interleaves the three axes.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from tango_core.models.base import ModelSpec
from tango_core.models.language.prompt import (
    BlockText,
    Ids,
    PromptLayout,
    Span,
    TextTokens,
    lay_out_blocks,
)
from tango_core.models.qwen3_vl.family import SYSTEM_TURN, StampedOptions
from tango_core.types import CompressedVideo, Positions, Prompt


class Layout(PromptLayout):
    """Prompt order: opening, protocol's text before the clip, the clip's blocks, question."""

    def __init__(self, spec: ModelSpec, *others: Any) -> None:
        super().__init__(spec, *others)
        assert isinstance(spec.options, StampedOptions)
        self._marks = (self.config.vision_start_token_id, self.config.vision_end_token_id)
        self._options = spec.options

    def cut(self, video: CompressedVideo, prompt: Prompt) -> tuple[Ids, Sequence[BlockText], Ids]:
        """See `PromptLayout.cut`; a block's text is its time stamp and its markers."""
        before, after, opening = prompt.before, prompt.after, self.chat.opening
        if self.config.model_type == "qwen3_5":  # its chat template strips messages
            before, after = before.lstrip(), after.rstrip()
        right = self.tokenize(self.chat.after_clip + after + self.chat.closing)
        if self._options.system_turn:
            opening = SYSTEM_TURN + opening
        times = [stamp(seconds) for seconds in video.timestamps.tolist()]
        start, end = self._marks
        texts = [BlockText((*self.tokenize(one), start), (end,)) for one in times]
        if self._options.outer_marks:
            return (*self.tokenize(opening + before), start), texts, right
        first = 0  # the first block that is part of the prompt
        if self._options.empty_blocks == "drop" and video.num_kept:
            first = int(video.indices[0]) // (video.grid[1] * video.grid[2])
        left, ids = joined_left(opening + before, times[first], self.tokenize)
        texts[first] = BlockText((*ids, start), (end,))
        return left, texts, right

    def place_clip(
        self, video: CompressedVideo, texts: Sequence[BlockText], positions: Positions
    ) -> tuple[Sequence[Span], Tensor, int]:
        """See `PromptLayout.place_clip`; positions are three-dimensional.

        Every token and every text has the position that it has in the full clip, however many
        tokens were dropped, so `positions` makes no difference.
        """
        empty, (_, height, width) = self._options.empty_blocks, video.grid
        spans, places, end = lay_out_blocks(
            video, texts, empty, lambda cells: _in_grid(cells, width), max(height, width)
        )
        if self._options.outer_marks:
            # The outer end marker is not part of a block, so it is never dropped.
            spans += (TextTokens(self._marks[1:], of_clip=True),)
            places = torch.cat([places, torch.full((3, 1), end)], dim=1)
            end += 1
        return spans, places, end


def _in_grid(cells: Tensor, width: int) -> Tensor:
    """(3, n) positions of (n,) grid positions h * W + w, with constant time."""
    rows = torch.div(cells, width, rounding_mode="floor")
    return torch.stack([torch.zeros_like(cells), rows, cells % width])


def stamp(seconds: float) -> str:
    """Text of a time, rounded half to even like Python: 0.25 becomes 0.2."""
    return f"<{seconds:.1f} seconds>"


def joined_left(
    text: str, first: str, tokenize: Callable[[str], tuple[int, ...]]
) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Tokenise the text before the clip together with the first time.

    There is no marker between the two, so a token may span both, such as `.<`; it is counted as
    text before the clip.

    Args:
        text: Text before the clip.
        first: Text of the first time.
        tokenize: Returns the token ids of a text.

    Returns:
        Ids of the text, and ids of the time.
    """
    together, alone = tokenize(text + first), tokenize(first)
    common = 0
    longest = min(len(together), len(alone))
    while common < longest and together[-1 - common] == alone[-1 - common]:
        common += 1
    return together[: len(together) - common], together[len(together) - common :]
