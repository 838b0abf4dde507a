"""A language model made of two parts: a family's prompt layout and an engine that generates text.

This project's engine, `NativeEngine`, decodes greedily with a loop over the layers of transformers.
"""

from __future__ import annotations

import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from tango_core.models.base import (
    AnswerSession,
    ClipPrompts,
    Guard,
    LanguageModel,
    LLMShape,
    ModelSpec,
    answers_to,
    no_guard,
)
from tango_core.models.language.batching import BatchSession, Reply, auto_batch_tokens
from tango_core.models.language.layer_loop import LayerLoop
from tango_core.models.language.packed_pass import embed_spans
from tango_core.models.language.prompt import LaidOutPrompt, LaidOutRequest, PromptLayout, Span
from tango_core.models.memory_faults import (
    again_with_memory_freed,
    cuda_is_in_use,
    free_bytes,
)
from tango_core.ops.transfer import upload
from tango_core.types import Answer, CompressedVideo, NotFiniteError, Prompt

DecodeText = Callable[[list[int]], str]
"""Token ids -> text without special tokens."""


class Engine(ABC):
    """Holds the weights of a language model and answers prompts with them.

    It is independent of the model family: the prompt holds order, text and positions. Decoding is
    greedy.

    Attributes:
        eos_ids: Tokens that end a reply.
    """

    eos_ids: frozenset[int] = frozenset()

    @abstractmethod
    def session(
        self, batch_tokens: int | None = None, guard: Guard = no_guard
    ) -> AnswerSession[LaidOutRequest]:
        """Open a session that answers many requests together, or one after another (`OneByOne`).

        Args:
            batch_tokens: Maximum number of tokens in flight, replies included; 1 for one request
                after another, `None` lets the engine choose.
            guard: Called with every error first; raises if no other request can be answered after
                it.
        """

    def answer(self, prompts: Sequence[LaidOutPrompt], **options: Any) -> list[Answer]:
        """Answer prompts about one clip, in order.

        Args:
            prompts: All about one clip; any number of text and visual spans.
            options: Other fields of `LaidOutRequest`.

        Raises:
            ValueError: If the engine does not support the request, for example a pruner.
        """
        return answers_to(LaidOutRequest(prompts, **options), self.session(1))

    def place(self, tokens: Tensor) -> Tensor:
        """Move a clip's tokens to the engine's device, once for all questions about the clip."""
        return tokens


class LayoutAndEngine(LanguageModel):
    """The language model that every family of this package loads.

    Args:
        spec: From `describe_model`.
        layout: Joins the family's clip and prompt into one sequence.
        engine: Generates the replies.
    """

    def __init__(self, spec: ModelSpec, layout: PromptLayout, engine: Engine) -> None:
        self.spec = spec
        self.layout = layout
        self.engine = engine

    def answer(
        self, video: CompressedVideo, prompts: Sequence[Prompt], **options: Any
    ) -> list[Answer]:
        """Answer all prompts about one clip; see `LanguageModel.answer`.

        Prompts share the clip's prefill if they have the same text before it. The times per
        question are then shares of the common time; see the engine.
        """
        return self.engine.answer(**vars(self.lay_out(ClipPrompts(video, prompts, **options))))

    def session(
        self, batch_tokens: int | None = None, guard: Guard = no_guard
    ) -> AnswerSession[ClipPrompts]:
        """Answer prompts about many clips together; see `LanguageModel.session`."""
        return _LaidOutSession(self, self.engine.session(batch_tokens, guard))

    def lay_out(self, asked: ClipPrompts) -> LaidOutRequest:
        """Lay out all prompts; the clip's tokens are moved to the engine's device once."""
        video = again_with_memory_freed(partial(self._placed, asked.video))
        return LaidOutRequest(
            [self.layout.lay_out(video, prompt, asked.positions) for prompt in asked.prompts],
            asked.pruner,
            asked.max_new_tokens,
            asked.share_prefix,
        )

    def _placed(self, video: CompressedVideo) -> CompressedVideo:
        """Copy of the clip with its tokens on the engine's device."""
        place, deep = self.engine.place, video.companions
        companions = None if deep is None else place(deep)
        return replace(video, tokens=place(video.tokens), companions=companions)


class _LaidOutSession(AnswerSession[ClipPrompts]):
    """Adapts an engine's session to a model's requests.

    Args:
        model: Lays the prompts out.
        session: The engine's session.
    """

    def __init__(self, model: LayoutAndEngine, session: AnswerSession[LaidOutRequest]) -> None:
        self._model = model
        self._session = session
        self._asked: dict[int, tuple[LaidOutRequest, ClipPrompts]] = {}

    @property
    def full(self) -> bool:
        """See `AnswerSession`."""
        return self._session.full

    @property
    def busy(self) -> bool:
        """See `AnswerSession`."""
        return self._session.busy

    def prepared(self, request: ClipPrompts) -> ClipPrompts:
        """See `AnswerSession`: tokenises the prompts, so that `add` finds them cached."""
        for prompt in request.prompts:
            self._model.layout.cut(request.video, prompt)
        return request

    def add(self, request: ClipPrompts) -> None:
        """See `AnswerSession`."""
        laid_out = self._model.lay_out(request)
        self._session.add(laid_out)
        self._asked[id(laid_out)] = laid_out, request

    def step(self) -> list[tuple[ClipPrompts, list[Answer] | Exception]]:
        """See `AnswerSession`."""
        return [(self._asked.pop(id(one))[1], found) for one, found in self._session.step()]


class NativeEngine(Engine):
    """Answers prompts with the layers of a checkpoint by greedy decoding.

    Of a checkpoint's generation_config.json only the end-of-turn tokens are used; sampling and
    repetition penalty are ignored, so that replies are reproducible.

    Args:
        model: The language half: `language_model` (a text model of transformers) and `lm_head`.
        decode_text: Token ids -> text without special tokens.
        eos_ids: Tokens that end a reply.

    Raises:
        ValueError: If the layers use a feature that `LayerLoop` does not support.
    """

    def __init__(
        self,
        model: nn.Module,
        decode_text: DecodeText,
        eos_ids: frozenset[int],
    ) -> None:
        half: Any = model
        self.model = model
        self.layer_loop = LayerLoop(half.language_model, half.lm_head)
        self.decode_text = decode_text
        self.eos_ids = eos_ids

    def embed(self, spans: Sequence[Span]) -> Tensor:
        """(S, D) embeddings of text and visual tokens."""
        return embed_spans(self.layer_loop, spans)

    def place(self, tokens: Tensor) -> Tensor:
        """Move a clip's tokens to the layers' device once, for all questions about it."""
        return upload(tokens, self.layer_loop.device).to(self.layer_loop.dtype)

    def session(self, batch_tokens: int | None = None, guard: Guard = no_guard) -> BatchSession:
        """See `Engine.session`; `None` is `auto_batch_tokens`.

        Prompts with the same text before the clip share the prefill of that text, of the clip, and
        of the common beginning of the text behind it, and continue from there in batches; other
        prompts are answered one after another. `BatchSession` defines the times.
        """
        if batch_tokens is None:
            loop = self.layer_loop
            free = free_bytes(loop.device) if cuda_is_in_use() else None
            shape = LLMShape.of(loop.config)
            batch_tokens = auto_batch_tokens(shape, loop.dtype.itemsize, free)
        return BatchSession(self, batch_tokens, guard)

    def clock(self) -> float:
        """Current time in seconds, after all device work has finished."""
        for device in self.layer_loop.devices:
            if device.type == "cuda":
                torch.cuda.synchronize(device)
        return time.perf_counter()

    def not_finite(self) -> NotFiniteError:
        """The error of a prompt whose logits are NaN or infinite."""
        dtype = str(self.layer_loop.dtype).removeprefix("torch.")
        return NotFiniteError(
            f"the language model computed NaN or infinite logits in {dtype}; set model.dtype to "
            "float32 or bfloat16, or check the checkpoint's weights"
        )

    def finish(self, reply: Reply) -> Answer:
        """Turn a finished reply into an answer."""
        return Answer(
            text=self.decode_text(reply.tokens).strip(),
            choice=None,
            status="ok",
            prompt_tokens=len(reply.prompt),
            new_tokens=len(reply.tokens),
            prefill_ms=reply.prefill * 1e3,
            ttft_ms=reply.first * 1e3,
            decode_ms=reply.decode * 1e3,
            visual_tokens=reply.prompt.num_visual,
            clip_text_tokens=reply.prompt.num_clip_text,
            first_token_at=reply.first_at,
        )
