"""Prompt layout of LLaVA: text, clip and newline tokens."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from tango_core.models.base import ModelSpec
from tango_core.models.language.prompt import BlockText, Ids, PromptLayout, Span, VisualTokens
from tango_core.models.llava.family import LlavaOptions, Newlines, TimeInstruction
from tango_core.types import ClipSource, CompressedVideo, Positions, Prompt


class Layout(PromptLayout):
    """Prompt order: opening, clip with newlines, sentence about time, question.

    Newlines are visual tokens of position -1 that an in-LLM method may drop like any other.
    """

    def __init__(self, spec: ModelSpec, *others: Any) -> None:
        super().__init__(spec, *others)
        *_, half = others
        self.newline: Tensor = half.image_newline
        assert isinstance(spec.options, LlavaOptions)
        self.newlines = spec.options.newlines
        self._wording = spec.options.time_instruction
        # Used for clips of unknown source.
        self._frame_height: int = self.config.vision_config.image_size

    def cut(self, video: CompressedVideo, prompt: Prompt) -> tuple[Ids, Sequence[BlockText], Ids]:
        """See `PromptLayout.cut`; there is no text inside the clip."""
        about_clip = time_instruction(video, self._wording, self._frame_height)
        right = self.chat.right(prompt, about_clip)
        return self.tokenize(self.chat.opening), (), self.tokenize(right)

    def place_clip(
        self, video: CompressedVideo, texts: Sequence[BlockText], positions: Positions
    ) -> tuple[Sequence[Span], Tensor, int]:
        """See `PromptLayout.place_clip`.

        Positions count all tokens contiguously (`"renumbered"`: the clip was shortened before ids
        existed), or leave the gaps of the dropped tokens (`"original"`: text after the clip is
        where it would be at full length).
        """
        order, places, length = lay_out_clip(video.indices, video.grid, self.newlines)
        if positions == "renumbered":
            places, length = torch.arange(len(order)), len(order)
        newline = self.newline[None]
        # Order -1, a newline, picks the last row.
        rows = torch.cat([video.tokens.to(newline), newline])
        indices = torch.cat([video.indices.cpu(), video.indices.new_tensor([-1]).cpu()])
        clip = VisualTokens(rows[order.to(rows.device)], indices[order], video.grid)
        return [clip], places, length


def lay_out_clip(
    indices: Tensor, grid: tuple[int, int, int], newlines: Newlines
) -> tuple[Tensor, Tensor, int]:
    """Insert the newlines of a clip.

    `"one_token"` is LLaVA-OneVision: one newline after the clip. `"grid"` is LLaVA-Video: one after
    every row of the grid that keeps at least one token. Both are names
    of `mm_newline_position` in the original checkpoints. Newlines do not count as kept tokens: at
    10 % of 13 x 13 tokens they are half as many again.

    Args:
        indices: (K,) int64 ascending flat positions of the kept tokens.
        grid: (T, H, W) before compression.
        newlines: Where they go.

    Returns:
        (V,) int64 index of the kept token at every place, -1 for a newline; (V,) int64 ascending
        positions of the places in the full sequence's clip; tokens of the full sequence's clip.
    """
    num_frames, height, width = grid
    order = torch.arange(len(indices))
    indices = indices.cpu()
    if newlines == "one_token":
        num_total = num_frames * height * width
        end, newline = indices.new_tensor([num_total]), order.new_tensor([-1])
        return torch.cat([order, newline]), torch.cat([indices, end]), num_total + 1
    rows = indices // width
    occupied = torch.unique_consecutive(rows)
    # In the full sequence a row is `width` tokens and its newline, and so are positions unique.
    positions = torch.cat([indices + rows, occupied * (width + 1) + width])
    sources = torch.cat([order, torch.full_like(occupied, -1)])
    positions, ascending = positions.sort()
    return sources[ascending], positions, num_frames * height * (width + 1)


_SENTENCE = (
    "The video lasts for {duration:.2f} seconds,{space}and {count} frames are uniformly sampled "
    "from it.{space}These frames are located at {times}."
    "Please answer the following questions related to this video.\n"
)


def time_instruction(video: CompressedVideo, wording: TimeInstruction, frame_height: int) -> str:
    """Text between the clip and the question.

    `"vlmevalkit"` is what VLMEvalKit writes, and with it the publications: it contains the
    height of the file's frames in pixels instead of the number of frames, because the harness takes
    the length of one frame's array. `"correct"` is the same with the number of frames,
    `"lmms_eval"` the sentence of lmms-eval, with the number of frames and a different spacing.

    Both harnesses write the time of a frame as its index over the average rate, from the first
    frame of the clip (they cut bounded clips out first). Here it is the frame's own time from that
    of the first frame: the same number wherever the rate is constant.

    Args:
        video: Its `timestamps` and `source` are read. Without a source the last frame's time is the
            length.
        wording: Source of the sentence; `"none"` for no text.
        frame_height: Used instead of `source.frame_height` if there is no source.

    Returns:
        The sentence with the line break that ends it, or "".
    """
    if wording == "none":
        return ""
    seconds = (video.timestamps - video.timestamps[0]).tolist()
    source = video.source or ClipSource(seconds[-1], frame_height)
    return _SENTENCE.format(
        space=" " if wording == "lmms_eval" else "",
        duration=source.duration_s,
        count=source.frame_height if wording == "vlmevalkit" else len(seconds),
        times=",".join(f"{second:.2f}s" for second in seconds),
    )
