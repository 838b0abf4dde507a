"""Prompt layout of InternVL: labelled frames between markers."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from tango_core.models.base import ModelSpec
from tango_core.models.internvl.family import InternVLOptions
from tango_core.models.language.prompt import BlockText, Ids, PromptLayout, Span, lay_out_blocks
from tango_core.types import CompressedVideo, Positions, Prompt

_MARKS = ("<img>", "</img>")


class Layout(PromptLayout):
    """Prompt order: opening; label, marker, tokens, marker per frame; the protocol's prompt."""

    def __init__(self, spec: ModelSpec, *others: Any) -> None:
        super().__init__(spec, *others)
        known = self.tokenizer.get_vocab()
        self._begin, self._end = (known[mark] for mark in _MARKS)
        assert isinstance(spec.options, InternVLOptions)
        self._options = spec.options

    def cut(self, video: CompressedVideo, prompt: Prompt) -> tuple[Ids, Sequence[BlockText], Ids]:
        """See `PromptLayout.cut`; a block's text is its label and markers.

        VLMEvalKit writes no label for a single frame.

        The line break after the last frame belongs to the text after the clip (`after_clip` of the
        chat format), because its first token may hold more than the line break.
        """
        num_frames, height, width = video.grid
        last = num_frames - 1
        if self._options.empty_blocks == "drop" and len(video.indices):
            last = int(video.indices[-1]) // (height * width)
        texts = []
        for number in range(num_frames):
            label = f"Frame-{number + 1}: " if num_frames > 1 else ""
            if self._options.frame_label == "lmms_eval":
                label = f"Frame{number + 1}: "
            after = () if number == last else self.tokenize("\n")
            texts.append(BlockText((*self.tokenize(label), self._begin), (self._end, *after)))
        return self.tokenize(self.chat.opening), texts, self.tokenize(self.chat.right(prompt))

    def place_clip(
        self, video: CompressedVideo, texts: Sequence[BlockText], positions: Positions
    ) -> tuple[Sequence[Span], Tensor, int]:
        """See `PromptLayout.place_clip`.

        Positions count all tokens contiguously (`"renumbered"`), or leave the gaps of the dropped
        tokens (`"original"`: all text is where it would be at full length).
        """
        per_frame, empty = video.grid[1] * video.grid[2], self._options.empty_blocks
        spans, clip, extent = lay_out_blocks(video, texts, empty, lambda cells: cells, per_frame)
        if positions == "renumbered":
            extent = len(clip)
            clip = torch.arange(extent)
        return spans, clip, extent
