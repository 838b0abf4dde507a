"""A prompt as spans of text and visual tokens with positions.

A clip may be laid out as blocks: the tokens of one temporal position after the other, with text
around each. Qwen3-VL writes the time before every pair of frames, InternVL the number before every
frame. The text of a block belongs to the clip, not to the question: it is equal for all questions,
no method drops it, and `model.empty_blocks` decides whether it stays if its block keeps no token.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import pairwise
from typing import Any

import torch
from torch import Tensor
from transformers import PreTrainedTokenizerBase

from tango_core.compressors.base import LayerPruner
from tango_core.errors import InputError
from tango_core.models.base import ModelSpec
from tango_core.models.language.chat import ChatFormat
from tango_core.models.options import EmptyBlocks
from tango_core.types import CompressedVideo, Positions, Prompt

# Size of the cache of tokenised texts: every method asks the same questions with the same text
# around them. A prompt with subtitles has some thousand tokens of 36 bytes each.
_TEXTS = 256


@dataclass(frozen=True)
class TextTokens:
    """A piece of text.

    Attributes:
        ids: Token ids.
        of_clip: Whether it belongs to the clip and not to the question: time stamps, markers around
            frames. Such text is never dropped and is counted separately from visual tokens.
    """

    ids: tuple[int, ...]
    of_clip: bool = False

    def __len__(self) -> int:
        return len(self.ids)


@dataclass(frozen=True, eq=False)
class VisualTokens:
    """A clip, or a piece of one.

    Attributes:
        embeddings: (V, D), newline tokens included.
        indices: (V,) int64 flat grid positions, -1 for newline tokens.
        grid: (T, H, W) of the clip before any compression.
        companions: (V, E, D) rows that are added to the states of these tokens after the first E
            layers (DeepStack); `None` for models without.
    """

    embeddings: Tensor
    indices: Tensor
    grid: tuple[int, int, int]
    companions: Tensor | None = None

    def __len__(self) -> int:
        return len(self.embeddings)


Span = TextTokens | VisualTokens


@dataclass(frozen=True, eq=False)
class LaidOutPrompt:
    """One question with its clip, in the order of the sequence.

    Attributes:
        spans: Text and visual tokens; the last span is the text after the clip, not empty. The
            clip's own text may be between visual spans and after the last one.
        positions: (..., S) int64 for the rotary embedding, S the tokens of all spans.
    """

    spans: tuple[Span, ...]
    positions: Tensor

    @property
    def prefix(self) -> tuple[Span, ...]:
        """The spans up to and including the clip."""
        return self.spans[:-1]

    @property
    def question(self) -> tuple[int, ...]:
        """Token ids after the clip."""
        last = self.spans[-1]
        assert isinstance(last, TextTokens)
        return last.ids

    def with_placeholder(self, placeholder: int) -> tuple[list[int], Tensor]:
        """Token ids with a placeholder for visual tokens, and (S,) bool of the visual ones."""
        ids: list[int] = []
        is_visual: list[bool] = []
        for span in self.spans:
            ids += span.ids if isinstance(span, TextTokens) else [placeholder] * len(span)
            is_visual += [isinstance(span, VisualTokens)] * len(span)
        return ids, torch.tensor(is_visual)

    @property
    def prefix_length(self) -> int:
        """Number of tokens up to and including the clip."""
        return sum(map(len, self.prefix))

    @property
    def num_visual(self) -> int:
        """Number of visual tokens, newline tokens included."""
        return sum(len(span) for span in self.spans if isinstance(span, VisualTokens))

    @property
    def num_clip_text(self) -> int:
        """Number of text tokens that belong to the clip."""
        return sum(
            len(span) for span in self.spans if isinstance(span, TextTokens) and span.of_clip
        )

    def __len__(self) -> int:
        return sum(map(len, self.spans))


@dataclass(frozen=True, eq=False)
class LaidOutRequest:
    """Prompts about one clip, to be answered by one method.

    Attributes:
        prompts: Any number of text and visual spans each.
        pruner: Drops visual tokens between layers; every prompt is then prefilled on its own.
        max_new_tokens: Upper bound per reply, 1 or larger.
        share_prefix: Whether prompts may share the prefill of their common beginning.
    """

    prompts: Sequence[LaidOutPrompt]
    pruner: LayerPruner | None = None
    max_new_tokens: int = 16
    share_prefix: bool = True


Ids = tuple[int, ...]


@dataclass(frozen=True)
class BlockText:
    """Token ids around the visual tokens of one temporal position.

    Attributes:
        before: Token ids before the visual tokens.
        after: Token ids after the visual tokens.
    """

    before: tuple[int, ...]
    after: tuple[int, ...] = ()


class PromptLayout(ABC):
    """Builds a model family's prompts: the position of the clip and the text around it.

    Args:
        spec: From `describe_model`.
        tokenizer: The checkpoint's tokenizer.
        chat: Text around clip and question.
        config: Configuration of the whole model; only some families need it.
        half: The loaded language half; only some families need it.
    """

    def __init__(
        self,
        spec: ModelSpec,
        tokenizer: PreTrainedTokenizerBase,
        chat: ChatFormat,
        config: Any = None,
        half: Any = None,
    ) -> None:
        self.spec = spec
        self.config = config
        self.tokenizer = tokenizer
        self.chat = chat
        self.tokenize = lru_cache(maxsize=_TEXTS)(self._tokenize)

    @abstractmethod
    def cut(self, video: CompressedVideo, prompt: Prompt) -> tuple[Ids, Sequence[BlockText], Ids]:
        """Tokenise a prompt: ids before the clip, text inside it, ids after it.

        Thread-safe and without device work: called in advance, it may run while the language model
        computes, and `lay_out` finds the tokens cached.

        Args:
            video: As in `lay_out`; its tokens are not read.
            prompt: As in `lay_out`.

        Returns:
            The text inside is one per temporal position for a clip that is laid out as blocks.
        """

    @abstractmethod
    def place_clip(
        self, video: CompressedVideo, texts: Sequence[BlockText], positions: Positions
    ) -> tuple[Sequence[Span], Tensor, int]:
        """Put a clip's tokens and the text inside it in order.

        Args:
            video: As in `lay_out`.
            texts: From `cut`.
            positions: As in `lay_out`.

        Returns:
            Spans; (..., K) int64 positions of their tokens, relative to the end of the text before
            the clip; distance from there to the text after the clip.
        """

    def lay_out(
        self, video: CompressedVideo, prompt: Prompt, positions: Positions = "renumbered"
    ) -> LaidOutPrompt:
        """Put text and clip in the order of the sequence, with their positions.

        Text has the same position on all axes. New tokens continue one by one from the last one, as
        `generate` of transformers does when it is given positions.

        Args:
            video: Tokens from a `Compressor`.
            prompt: The prompt that the protocol built.
            positions: Number kept tokens contiguously, or by their position in the full sequence.

        Raises:
            ValueError: If the tokens have another width than the language model, or other DeepStack
                rows.
        """
        deep = 0 if video.companions is None else video.companions.shape[1]
        found = (video.tokens.shape[1], deep)
        wanted = (self.spec.llm.hidden_size, self.spec.companions)
        if found != wanted:
            raise InputError(
                f"video tokens have width {found[0]} and {found[1]} companions each, but model "
                f"{self.spec.name} has {wanted[0]} and {wanted[1]}; encode the clip with the same "
                "checkpoint"
            )
        left, texts, right = self.cut(video, prompt)
        clip, places, extent = self.place_clip(video, texts, positions)
        axes, start = places.shape[:-1], len(left)
        pieces = (
            _counted(0, start, axes),
            places + start,
            _counted(start + extent, len(right), axes),
        )
        spans = (TextTokens(left), *clip, TextTokens(right))
        return LaidOutPrompt(spans, torch.cat(pieces, dim=-1))

    def _tokenize(self, text: str) -> Ids:
        """Token ids of a piece of the conversation."""
        return tuple(self.tokenizer(text, add_special_tokens=False).input_ids)

    def decode(self, ids: list[int]) -> str:
        """Text of a reply, without special tokens."""
        return str(self.tokenizer.decode(ids, skip_special_tokens=True))


def lay_out_blocks(
    video: CompressedVideo,
    texts: Sequence[BlockText],
    empty: EmptyBlocks,
    place: Callable[[Tensor], Tensor],
    extent: int,
) -> tuple[tuple[Span, ...], Tensor, int]:
    """Build the spans of a clip that is laid out as blocks, with their full-clip positions.

    Args:
        video: K kept tokens of (T, H, W).
        texts: One per temporal position, T.
        empty: Whether the text of a block without kept tokens stays.
        place: Maps (n,) int64 grid positions h * W + w of a frame to (..., n) int64 positions
            relative to the first position of the block's visual tokens.
        extent: Distance from the first position of a block's visual tokens to the text after
            them, independent of dropped tokens.

    Returns:
        Alternating text and visual spans, adjacent texts merged; (..., S) int64 positions relative
        to the clip's start; and the position after the clip.
    """
    num_blocks, per_frame, indices = video.grid[0], math.prod(video.grid[1:]), video.indices.cpu()
    starts = torch.arange(num_blocks + 1) * per_frame
    bounds = torch.searchsorted(indices, starts).tolist()
    axes = place(indices[:0]).shape[:-1]
    spans: list[Span] = []
    pieces: list[Tensor] = [torch.empty((*axes, 0), dtype=torch.int64)]
    pending: tuple[int, ...] = ()
    at = 0
    for text, (start, stop) in zip(texts, pairwise(bounds), strict=True):
        first, behind = at + len(text.before), at + len(text.before) + extent
        if start < stop or empty == "keep":
            pieces.append(_counted(at, len(text.before), axes))
            pieces.append(place(indices[start:stop] % per_frame) + first)
            pieces.append(_counted(behind, len(text.after), axes))
            pending += text.before
            if start < stop:
                if pending:
                    spans.append(TextTokens(pending, of_clip=True))
                rows = slice(start, stop)
                deep = None if video.companions is None else video.companions[rows]
                spans.append(VisualTokens(video.tokens[rows], indices[rows], video.grid, deep))
                pending = ()
            pending += text.after
        at = behind + len(text.after)
    if pending:
        spans.append(TextTokens(pending, of_clip=True))
    return tuple(spans), torch.cat(pieces, dim=-1), at


def _counted(start: int, count: int, axes: Sequence[int]) -> Tensor:
    """Consecutive text positions, equal on all axes."""
    return (torch.arange(count) + start).expand(*axes, count)
