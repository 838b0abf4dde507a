"""A language model made of two parts: the layout of a family, and an engine that makes tokens.

The engine of this project (`NativeEngine`) makes greedy answers by a loop over stock layers.
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

from tango_core.compressors.base import LayerPruner
from tango_core.models.base import AnswerSession, ClipPrompts, LanguageModel, ModelSpec, OneByOne
from tango_core.models.language.arena import bytes_per_token, on_cpu, on_gpu, row_bytes
from tango_core.models.language.attention import use_packed_attention
from tango_core.models.language.batching import BatchSession
from tango_core.models.language.layer_loop import LayerLoop
from tango_core.models.language.prefill import LaidOutRequest, Reply, embed_spans
from tango_core.models.language.prompt import LaidOutPrompt, PromptLayout, Span
from tango_core.models.memory_faults import again_with_memory_freed, cuda_is_in_use
from tango_core.models.towers.frame_batches import free_bytes
from tango_core.types import Answer, CompressedVideo, NotFiniteError, Positions, Prompt


def _no_guard(error: Exception) -> None:
    """Every error is that of one request."""


class Engine(ABC):
    """Holds the weights of a language model and answers prompts with them.

    It knows no family: order, text and positions are in the prompt. Replies are greedy.
    """

    @abstractmethod
    def answer(
        self,
        prompts: Sequence[LaidOutPrompt],
        *,
        pruner: LayerPruner | None = None,
        max_new_tokens: int = 16,
        share_prefix: bool = True,
    ) -> list[Answer]:
        """Answer prompts about one clip.

        Args:
            prompts: All about one clip; any number of text and visual spans.
            pruner: Drops visual tokens between layers.
            max_new_tokens: Upper bound per reply, 1 or larger.
            share_prefix: Whether prompts may share the computation of what they begin with.

        Returns:
            One answer per prompt, in order.

        Raises:
            ValueError: If the engine cannot do what is asked, such as pruning inside.
        """

    def place(self, tokens: Tensor) -> Tensor:
        """A clip's tokens where the engine wants them, once for all questions about the clip."""
        return tokens

    def session(
        self, batch_tokens: int | None = None, guard: Callable[[Exception], None] = _no_guard
    ) -> AnswerSession[LaidOutRequest]:
        """Answer many requests together; an engine that cannot answers one after the other.

        Args:
            batch_tokens: Tokens, replies included, that may be worked on at once; `None` is the
                engine's own choice.
            guard: Is shown every error first, and raises if no other work can be done after it.
        """
        return OneByOne(self._answer_request, guard)

    def _answer_request(self, request: LaidOutRequest) -> list[Answer]:
        """One request."""
        return self.answer(
            request.prompts,
            pruner=request.pruner,
            max_new_tokens=request.max_new_tokens,
            share_prefix=request.share_prefix,
        )


class LayoutAndEngine(LanguageModel):
    """The language model that every family of this package loads.

    Args:
        spec: From `describe_model`.
        layout: How this family's clip and prompt become one sequence.
        engine: How tokens are made from it.
    """

    def __init__(self, spec: ModelSpec, layout: PromptLayout, engine: Engine) -> None:
        self.spec = spec
        self.layout = layout
        self.engine = engine

    def answer(
        self,
        video: CompressedVideo,
        prompts: Sequence[Prompt],
        *,
        pruner: LayerPruner | None = None,
        positions: Positions = "renumbered",
        max_new_tokens: int = 16,
        share_prefix: bool = True,
    ) -> list[Answer]:
        """Answer all prompts about one clip; see `LanguageModel.answer`.

        Prompts share the clip's prefill if they have the same text before it. Times per question
        are then shares of the time spent together; see the engine.
        """
        asked = ClipPrompts(video, prompts, pruner, positions, max_new_tokens, share_prefix)
        return self.engine._answer_request(self._lay_out(asked))

    def session(
        self, batch_tokens: int | None = None, guard: Callable[[Exception], None] = _no_guard
    ) -> AnswerSession[ClipPrompts]:
        """Answer prompts about many clips together; see `LanguageModel.session`."""
        session = self.engine.session(batch_tokens, guard)
        return _LaidOutSession(session, self._lay_out, self.layout.cut)

    def _lay_out(self, asked: ClipPrompts) -> LaidOutRequest:
        """Text and clip in order; the clip's tokens go to the engine's device once."""
        video = again_with_memory_freed(partial(self._placed, asked.video))
        return LaidOutRequest(
            [self.layout.lay_out(video, prompt, asked.positions) for prompt in asked.prompts],
            asked.pruner,
            asked.max_new_tokens,
            asked.share_prefix,
        )

    def _placed(self, video: CompressedVideo) -> CompressedVideo:
        """The clip with its tokens on the engine's device."""
        placed, companions = self.engine.place(video.tokens), video.companions
        if companions is not None:
            companions = self.engine.place(companions)
        return replace(video, tokens=placed, companions=companions)


class _LaidOutSession(AnswerSession[ClipPrompts]):
    """A session of an engine, with the requests of a model.

    Args:
        session: Of the engine.
        lay_out: Request of the model -> request of the engine.
        cut: Cuts the words of a prompt about a clip into tokens, ahead of that.
    """

    def __init__(
        self,
        session: AnswerSession[LaidOutRequest],
        lay_out: Callable[[ClipPrompts], LaidOutRequest],
        cut: Callable[[CompressedVideo, Prompt], object],
    ) -> None:
        self._session = session
        self._lay_out = lay_out
        self._cut = cut
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
        """See `AnswerSession`: the words are cut, and the tokenizer knows them when it is added."""
        for prompt in request.prompts:
            self._cut(request.video, prompt)
        return request

    def add(self, request: ClipPrompts) -> None:
        """See `AnswerSession`."""
        laid_out = self._lay_out(request)
        self._session.add(laid_out)
        self._asked[id(laid_out)] = laid_out, request

    def step(self) -> list[tuple[ClipPrompts, list[Answer] | Exception]]:
        """See `AnswerSession`."""
        return [(self._asked.pop(id(one))[1], found) for one, found in self._session.step()]


class NativeEngine(Engine):
    """Answers prompts with the layers of a checkpoint, always taking the most likely token.

    A checkpoint's generation_config.json may ask for sampling or a repetition penalty; neither is
    used, so that replies can be repeated. Only its end-of-turn tokens are.

    Args:
        model: The language half, with `language_model` (a stock text model) and `lm_head`.
        decode_text: Token ids -> text without special tokens.
        eos_ids: Tokens that end a reply.
        compiles: Whether layers are compiled for prefill (`kernels.py`).

    Raises:
        ValueError: If the layers do something that `LayerLoop` does not support.
    """

    def __init__(
        self,
        model: nn.Module,
        decode_text: Callable[[list[int]], str],
        eos_ids: frozenset[int],
        compiles: bool = False,
    ) -> None:
        half: Any = model
        self.model = model
        self.layer_loop = LayerLoop(half.language_model, half.lm_head, compiles)
        self.decode_text = decode_text
        self.eos_ids = eos_ids
        use_packed_attention(half.language_model)
        # With room for one part of a request at a time.
        self._alone = BatchSession(self, 1)

    @property
    def layers(self) -> list[Any]:
        """The layers of the language model."""
        return self.layer_loop.layers

    def embed(self, spans: Sequence[Span]) -> Tensor:
        """(S, D) embeddings of text and visual tokens."""
        return embed_spans(self.layer_loop, spans)

    def place(self, tokens: Tensor) -> Tensor:
        """A clip's tokens where the layers are, so that questions about it need no more uploads."""
        device = self.layer_loop.device
        if cuda_is_in_use() and tokens.device.type == "cpu" != device.type:
            tokens = tokens.pin_memory().to(device, non_blocking=True)
        return tokens.to(device, self.layer_loop.dtype)

    def session(
        self,
        batch_tokens: int | None = None,
        guard: Callable[[Exception], None] = lambda error: None,
    ) -> BatchSession:
        """See `Engine.session`; `None` is `auto_batch_tokens`."""
        if batch_tokens is None:
            batch_tokens = auto_batch_tokens(self.layer_loop)
        return BatchSession(self, batch_tokens, guard)

    def answer(
        self,
        prompts: Sequence[LaidOutPrompt],
        *,
        pruner: LayerPruner | None = None,
        max_new_tokens: int = 16,
        share_prefix: bool = True,
    ) -> list[Answer]:
        """Answer prompts about one clip; see `Engine.answer`.

        Prompts with the same text before the clip share the prefill of that text, of the clip, and
        of the words behind it that all of them begin with, and continue from there in batches; all
        others are answered one after the other. `BatchSession` says what the times mean.

        Args:
            prompts: All about one clip.
            pruner: Drops visual tokens between layers; every prompt is then prefilled on its own.
            max_new_tokens: Upper bound per reply, 1 or larger.
            share_prefix: `False` prefills every prompt on its own.

        Raises:
            ValueError: If `max_new_tokens` is smaller than 1, or a prompt with several clips is to
                be pruned.
        """
        request = LaidOutRequest(prompts, pruner, max_new_tokens, share_prefix)
        try:
            self._alone.add(request)
            while True:
                found = next((got for done, got in self._alone.step() if done is request), None)
                if found is not None:
                    break
        except BaseException:  # Ctrl-C in a notebook: what is half done must not meet the next one
            self._alone = BatchSession(self, 1)
            raise
        if isinstance(found, Exception):
            raise found
        return found

    def clock(self) -> float:
        """Seconds, after the device has finished what it was asked to do."""
        self.layer_loop.spread.synchronize()
        return time.perf_counter()

    def not_finite(self) -> NotFiniteError:
        """The error of a prompt whose logits are NaN or infinite."""
        dtype = str(self.layer_loop.dtype).removeprefix("torch.")
        return NotFiniteError(
            f"the language model computed NaN or infinite logits in {dtype}; set model.dtype to "
            "float32 or bfloat16, or check the checkpoint's weights"
        )

    def finish(self, reply: Reply) -> Answer:
        """Turn token ids and seconds into an answer."""
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
        )


def auto_batch_tokens(layer_loop: LayerLoop) -> int:
    """Tokens that are answered together where nobody says how many.

    On CUDA as many as half of the memory that is free now has room for: keys and values, and what
    the widest layer keeps of every row while it computes.
    """
    if layer_loop.device.type != "cuda" or not cuda_is_in_use():
        return on_cpu(sum(int(one.nbytes) for one in layer_loop.layers[0].parameters()))
    free = free_bytes(layer_loop.device)
    config = layer_loop.config
    itemsize = torch.empty((), dtype=layer_loop.dtype).element_size()
    row = row_bytes(config.hidden_size, config.intermediate_size, itemsize)
    return on_gpu(free or 0, bytes_per_token(layer_loop.layers) + row)
