"""Prompt layout of Qwen2.5-VL: a clip between two markers, 3-D positions.

Positions are time, row and column of every token. They are computed here and not by transformers,
whose rule for text behind a clip changed with version 5, and whose model keeps the last call's
offset as state.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor

from tango_core.models.language.prompt import BlockText, Ids, PromptLayout, Span, VisualTokens
from tango_core.models.qwen2_5_vl.family import PositionRule, QwenOptions
from tango_core.types import CompressedVideo, Positions, Prompt


class Layout(PromptLayout):
    """Prompt order: opening, protocol's text before the clip, marker, clip, marker, question."""

    def cut(self, video: CompressedVideo, prompt: Prompt) -> tuple[Ids, Sequence[BlockText], Ids]:
        """Ids up to the first marker and from the second on; see `PromptLayout.cut`."""
        words = self.chat.after_clip + prompt.after + self.chat.closing
        left = (
            *self.tokenize(self.chat.opening + prompt.before),
            self.config.vision_start_token_id,
        )
        return left, (), (self.config.vision_end_token_id, *self.tokenize(words))

    def place_clip(
        self, video: CompressedVideo, texts: Sequence[BlockText], positions: Positions
    ) -> tuple[Sequence[Span], Tensor, int]:
        """See `PromptLayout.place_clip`; positions are three-dimensional.

        Text behind the clip starts where it would behind the full clip, however many tokens were
        dropped, so `positions` makes no difference: every token keeps its coordinates in the full
        clip.
        """
        assert isinstance(self.spec.options, QwenOptions)
        indices = video.indices.cpu()
        options = self.spec.options
        pace = self.config.vision_config.tokens_per_second * options.seconds_per_grid
        extent = clip_extent(video.grid, pace, options.position_rule)
        clip = clip_positions(indices, video.grid, pace)
        return [VisualTokens(video.tokens, indices, video.grid)], clip, extent


def clip_positions(indices: Tensor, grid: tuple[int, int, int], pace: float) -> Tensor:
    """Coordinates of a clip's tokens, the first token of the full clip at (0, 0, 0).

    A kept token has the coordinates it has in the full clip, independent of dropped tokens. Time is
    counted in steps of `tokens_per_second`, cut to integers after the multiplication.

    Args:
        indices: (K,) int64 flat positions t * H * W + h * W + w.
        grid: (T, H, W) of the full clip.
        pace: Steps from one temporal position to the next.

    Returns:
        (3, K) int64.
    """
    _, height, width = grid
    frames = torch.div(indices, height * width, rounding_mode="floor")
    rows = torch.div(indices, width, rounding_mode="floor") % height
    times = (frames * pace).long()
    return torch.stack([times, rows, indices % width])


def clip_extent(grid: tuple[int, int, int], pace: float, rule: PositionRule) -> int:
    """Position of the text after a clip, relative to the clip's start.

    `"hf450"` is transformers up to 4.5x, with which the publications were measured: one beyond the
    largest coordinate of the clip. `"hf5"` is transformers 5: the longer side of the grid, however
    long the clip. For 16 pairs of frames of 16 x 16 tokens these are 31 and 16.

    Args:
        grid: (T, H, W) of the clip before anything was dropped.
        pace: As in `clip_positions`.
        rule: `"hf450"` or `"hf5"`.
    """
    if rule == "hf5":
        return max(grid[1:])
    last = torch.tensor([math.prod(grid) - 1])
    return int(clip_positions(last, grid, pace).max()) + 1
