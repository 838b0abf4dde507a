"""Prompt layout of InternVL: labelled frames between marks."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from tango_core.models.base import ModelSpec
from tango_core.models.internvl.family import FrameLabel, InternVLOptions
from tango_core.models.language.prompt import (
    BlockText,
    LaidOutPrompt,
    PromptLayout,
    around_clip,
    lay_out_blocks,
)
from tango_core.types import CompressedVideo, Positions, Prompt

_MARKS = ("<img>", "</img>")


def frame_label(number: int, num_frames: int, wording: FrameLabel) -> str:
    """Text in front of a frame.

    Args:
        number: Number of the frame, from 1.
        num_frames: Number of frames of the clip.
        wording: Format of the label; VLMEvalKit writes none for a single frame.
    """
    if wording == "lmms_eval":
        return f"Frame{number}: "
    return f"Frame-{number}: " if num_frames > 1 else ""


class Layout(PromptLayout):
    """Prompt order: opening; label, mark, tokens and mark per frame; the protocol's prompt."""

    def __init__(self, spec: ModelSpec, *others: Any) -> None:
        super().__init__(spec, *others)
        known = self.tokenizer.get_vocab()
        self._begin, self._end = (known[mark] for mark in _MARKS)
        assert isinstance(spec.options, InternVLOptions)
        self._options = spec.options
        self._next_line = self.tokenize("\n")

    def cut(
        self, video: CompressedVideo, prompt: Prompt
    ) -> tuple[tuple[int, ...], tuple[int, ...], tuple[tuple[int, ...], ...]]:
        """Ids before and after the clip, and of every label; see `PromptLayout.cut`."""
        num_frames, wording = video.grid[0], self._options.frame_label
        numbers = range(1, num_frames + 1)
        labels = [self.tokenize(frame_label(one, num_frames, wording)) for one in numbers]
        left, right = self.tokenize(self.chat.opening), self.tokenize(self.chat.right(prompt))
        return left, right, tuple(labels)

    def lay_out(
        self, video: CompressedVideo, prompt: Prompt, positions: Positions = "renumbered"
    ) -> LaidOutPrompt:
        """Put text and clip in the order of the sequence, with their positions.

        Positions count all tokens contiguously (`"renumbered"`), or leave the gaps of the dropped
        tokens (`"original"`: all text is where it would be at full length).

        Raises:
            ValueError: If the tokens are not as wide as the language model.
        """
        self.raise_if_of_another_model(video)
        left, right, labels = self.cut(video, prompt)
        texts, per_frame = self._block_texts(video, labels), video.grid[1] * video.grid[2]
        empty = self._options.empty_blocks
        spans, clip, extent = lay_out_blocks(video, texts, empty, lambda cells: cells, per_frame)
        if positions == "renumbered":
            extent = len(clip)
            clip = torch.arange(extent)
        return around_clip(left, spans, clip, extent, right)

    def _block_texts(
        self, video: CompressedVideo, labels: Sequence[tuple[int, ...]]
    ) -> list[BlockText]:
        """Text around the tokens of every frame.

        The line break after the last frame belongs to the text after the clip (`after_clip` of the
        chat format), because its first token may hold more than the line break.
        """
        num_frames, height, width = video.grid
        last = num_frames - 1
        if self._options.empty_blocks == "drop" and len(video.indices):
            last = int(video.indices[-1]) // (height * width)
        after = (self._end, *self._next_line)
        return [
            BlockText((*label, self._begin), after[:1] if number == last else after)
            for number, label in enumerate(labels)
        ]
