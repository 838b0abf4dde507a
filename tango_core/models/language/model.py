"""A language model made of two parts: the layout of a family, and an engine that makes tokens."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial

from torch import Tensor

from tango_core.compressors.base import LayerPruner
from tango_core.models.base import LanguageModel, ModelSpec
from tango_core.models.language.parts import LaidOutRequest
from tango_core.models.language.prompt import LaidOutPrompt, PromptLayout
from tango_core.models.memory_faults import again_with_memory_freed
from tango_core.models.session import AnswerSession, ClipPrompts, OneByOne
from tango_core.types import Answer, CompressedVideo, Positions, Prompt


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
