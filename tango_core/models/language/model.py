"""A language model made of two parts: the layout of a family, and an engine that makes tokens."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence

from tango_core.compressors.base import LayerPruner
from tango_core.models.base import LanguageModel, ModelSpec
from tango_core.models.language.prompt import LaidOutPrompt, PromptLayout
from tango_core.types import Answer, CompressedVideo, Positions, Prompt


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
        return self.engine.answer(
            [self.layout.lay_out(video, prompt, positions) for prompt in prompts],
            pruner=pruner,
            max_new_tokens=max_new_tokens,
            share_prefix=share_prefix,
        )
