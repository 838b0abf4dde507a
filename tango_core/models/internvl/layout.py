"""How InternVL puts text and clip in one sequence: every frame between two marks, with a label."""

from __future__ import annotations

from functools import lru_cache

import torch
from torch import Tensor
from transformers import PreTrainedTokenizerBase

from tango_core.models.base import ModelSpec
from tango_core.models.internvl.options import FrameLabel, options_of
from tango_core.models.language.chat import ChatFormat
from tango_core.models.language.prompt import (
    LaidOutPrompt,
    PromptLayout,
    Span,
    TextTokens,
    VisualTokens,
)
from tango_core.types import CompressedVideo, Positions, Prompt

_MARKS = ("<img>", "</img>")
# Numbers of frames whose text is remembered: short clips have fewer.
_LENGTHS = 8


def frame_label(number: int, num_frames: int, wording: FrameLabel) -> str:
    """Text in front of a frame.

    Args:
        number: From 1 on.
        num_frames: Of the clip.
        wording: Whose; VLMEvalKit writes nothing in front of a single frame.
    """
    if wording == "lmms_eval":
        return f"Frame{number}: "
    return f"Frame-{number}: " if num_frames > 1 else ""


class InternVLPromptLayout(PromptLayout):
    """Opening; label, mark, tokens and mark of every frame; all words of the protocol.

    A frame of which nothing is kept keeps its label and marks.

    Args:
        spec: From `describe_model`.
        tokenizer: The checkpoint's.
        chat: Text around clip and question.

    Raises:
        ValueError: If the tokenizer does not know the marks.
    """

    def __init__(
        self, spec: ModelSpec, tokenizer: PreTrainedTokenizerBase, chat: ChatFormat
    ) -> None:
        super().__init__(spec, tokenizer, chat)
        known = tokenizer.get_vocab()
        missing = [mark for mark in _MARKS if mark not in known]
        if missing:
            raise ValueError(
                f"model.path {spec.path}: its tokenizer has no token {missing[0]}, which InternVL "
                "puts around every frame; copy the tokenizer's files of the checkpoint again"
            )
        self._begin, self._end = (known[mark] for mark in _MARKS)
        self._wording = options_of(spec).frame_label
        self._before_frames = lru_cache(maxsize=_LENGTHS)(self._tokenize_before_frames)

    def lay_out(
        self, video: CompressedVideo, prompt: Prompt, positions: Positions = "renumbered"
    ) -> LaidOutPrompt:
        """Put text and clip in the order of the sequence, with their positions.

        Positions count all tokens contiguously (`"renumbered"`), or leave the gaps of the dropped
        tokens (`"original"`: all text is where it would be at full length).

        Raises:
            ValueError: If the tokens are not as wide as the language model.
        """
        self.raise_if_wrong_width(video)
        num_frames, height, width = video.grid
        indices = video.indices.cpu()
        counts = torch.bincount(indices // (height * width), minlength=num_frames).tolist()
        clip = zip(video.tokens.split(counts), indices.split(counts), strict=True)
        spans: list[Span] = []
        places: list[Tensor] = []
        text: tuple[int, ...] = ()
        at = 0
        for before, (tokens, kept) in zip(self._before_frames(num_frames), clip, strict=True):
            text += before
            places += [torch.arange(at, at + len(before))]
            at += len(before)
            if len(kept):
                spans += [TextTokens(text), VisualTokens(tokens, kept, video.grid)]
                places += [kept % (height * width) + at]
                text = ()
            at += height * width
        words = (self._end, *self.tokenize(self.chat.right(prompt)))
        spans.append(TextTokens(text + words))
        places.append(torch.arange(at, at + len(words)))
        found = torch.cat(places)
        if positions == "renumbered":
            found = torch.arange(len(found))
        return LaidOutPrompt(spans=tuple(spans), positions=found)

    def _tokenize_before_frames(self, num_frames: int) -> tuple[tuple[int, ...], ...]:
        """Ids from the end of the frame before, or from the opening, up to the mark of a frame."""
        labels = [frame_label(n + 1, num_frames, self._wording) for n in range(num_frames)]
        first = self.tokenize(self.chat.left() + labels[0])
        others = [(self._end, *self.tokenize(f"\n{label}")) for label in labels[1:]]
        return tuple((*ids, self._begin) for ids in (first, *others))
