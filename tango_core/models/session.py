"""Sessions: many requests answered together by an engine."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Generic, TypeVar

from tango_core.types import Answer, CompressedVideo, Positions, Prompt

if TYPE_CHECKING:
    from tango_core.compressors.base import LayerPruner

RequestT = TypeVar("RequestT")


@dataclass(frozen=True, eq=False)
class ClipPrompts:
    """All prompts about one clip under one method; see `LanguageModel.answer`.

    Attributes:
        video: Tokens from a `Compressor`.
        prompts: One per question.
        pruner: In-LLM method; forces one prefill per question.
        positions: Number kept tokens contiguously, or by their place in the full sequence.
        max_new_tokens: Upper bound on generated tokens per question.
        share_prefix: `False` prefills every question from scratch.
    """

    video: CompressedVideo
    prompts: Sequence[Prompt]
    pruner: LayerPruner | None = None
    positions: Positions = "renumbered"
    max_new_tokens: int = 16
    share_prefix: bool = True


class AnswerSession(ABC, Generic[RequestT]):
    """Takes requests about clips and gives their answers back in any order.

    Add while it is not `full`, then take steps; a request that fails does so alone.
    """

    @property
    @abstractmethod
    def full(self) -> bool:
        """Whether enough requests wait for the next step."""

    @property
    @abstractmethod
    def busy(self) -> bool:
        """Whether any request is not answered yet."""

    def prepared(self, request: RequestT) -> RequestT:
        """A request with what can be done before it is added; another thread may do it.

        Raises:
            ValueError: As `add`.
        """
        return request

    @abstractmethod
    def add(self, request: RequestT) -> None:
        """Take a request.

        Raises:
            ValueError: If it cannot be put at all; the others are not touched.
        """

    @abstractmethod
    def step(self) -> list[tuple[RequestT, list[Answer] | Exception]]:
        """Work for a while; return what was finished, as answers in order or what went wrong."""


class OneByOne(AnswerSession[RequestT]):
    """Answers one request per step.

    Args:
        answer: Answers a request.
        guard: Is shown every error first, and raises if no other work can be done after it.
    """

    def __init__(
        self,
        answer: Callable[[RequestT], list[Answer]],
        guard: Callable[[Exception], None] = lambda error: None,
    ) -> None:
        self._answer = answer
        self._guard = guard
        self._waiting: deque[RequestT] = deque()

    @property
    def full(self) -> bool:
        """See `AnswerSession`: a single request is enough."""
        return bool(self._waiting)

    @property
    def busy(self) -> bool:
        """See `AnswerSession`."""
        return bool(self._waiting)

    def add(self, request: RequestT) -> None:
        """See `AnswerSession`."""
        self._waiting.append(request)

    def step(self) -> list[tuple[RequestT, list[Answer] | Exception]]:
        """See `AnswerSession`."""
        if not self._waiting:
            return []
        request = self._waiting.popleft()
        try:
            return [(request, self._answer(request))]
        except Exception as error:
            self._guard(error)
            return [(request, error)]
