"""How LLaVA puts text, clip and newlines in one sequence."""

from __future__ import annotations

import torch
from torch import Tensor
from transformers import PreTrainedTokenizerBase

from tango_core.models.base import ModelSpec
from tango_core.models.language.chat import ChatFormat
from tango_core.models.language.prompt import LaidOutPrompt, PromptLayout, TextTokens, VisualTokens
from tango_core.models.llava.newlines import lay_out_clip
from tango_core.models.llava.options import Newlines, options_of
from tango_core.models.llava.time_instruction import time_instruction
from tango_core.types import CompressedVideo, Positions, Prompt


class LlavaPromptLayout(PromptLayout):
    """Opening, clip with its newlines, sentence about time, question.

    Newlines are visual tokens of position -1 that an in-LLM method may drop like any other.

    Args:
        spec: From `describe_model`.
        tokenizer: The checkpoint's.
        chat: Text around clip and question.
        newline: (D,) embedding of the newline token.
        newlines: Where the model expects newlines among a clip's tokens.
        frame_height: Height of the model's own frames, for clips of unknown source.
    """

    def __init__(
        self,
        spec: ModelSpec,
        tokenizer: PreTrainedTokenizerBase,
        chat: ChatFormat,
        newline: Tensor,
        newlines: Newlines,
        frame_height: int,
    ) -> None:
        super().__init__(spec, tokenizer, chat)
        self.newline = newline
        self.newlines = newlines
        self._frame_height = frame_height
        self._wording = options_of(spec).time_instruction

    def cut(
        self, video: CompressedVideo, prompt: Prompt
    ) -> tuple[tuple[int, ...], tuple[int, ...]]:
        """Ids before and behind the clip; see `PromptLayout.cut`."""
        about_clip = time_instruction(video, self._wording, self._frame_height)
        right = self.chat.right(prompt, about_clip)
        return self.tokenize(self.chat.left()), self.tokenize(right)

    def lay_out(
        self, video: CompressedVideo, prompt: Prompt, positions: Positions = "renumbered"
    ) -> LaidOutPrompt:
        """Put text and clip in the order of the sequence, with their positions.

        Positions count all tokens contiguously (`"renumbered"`: the clip was shortened before ids
        existed), or leave the gaps of the dropped tokens (`"original"`: text after the clip is
        where it would be at full length).

        Raises:
            ValueError: If the tokens are not as wide as the language model.
        """
        self.raise_if_wrong_width(video)
        left, right = self.cut(video, prompt)
        layout = lay_out_clip(video.indices, video.grid, self.newlines)
        clip_positions, length = layout.positions, layout.full_length
        if positions == "renumbered":
            clip_positions, length = torch.arange(len(clip_positions)), len(clip_positions)
        newline = self.newline[None]
        # Order -1, a newline, picks the last row.
        rows = torch.cat([video.tokens.to(newline), newline])
        indices = torch.cat([video.indices.cpu(), video.indices.new_tensor([-1]).cpu()])
        clip = VisualTokens(rows[layout.order.to(rows.device)], indices[layout.order], video.grid)
        return LaidOutPrompt(
            spans=(TextTokens(left), clip, TextTokens(right)),
            positions=torch.cat(
                [
                    torch.arange(len(left)),
                    clip_positions + len(left),
                    torch.arange(len(right)) + len(left) + length,
                ]
            ),
        )
