"""What the language halves of all families share: a laid-out clip, decoded greedily."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence

from transformers import PreTrainedTokenizerBase

from tango_core.compressors.base import LayerPruner
from tango_core.models.base import LanguageModel, ModelSpec
from tango_core.models.language.decoder import Decoder
from tango_core.models.language.generation import GreedyGenerator, LaidOutPrompt
from tango_core.types import Answer, CompressedVideo, Positions, Prompt


class GreedyLanguageModel(LanguageModel):
    """A decoder with its tokenizer; a family says how a clip and a prompt become one sequence.

    Replies are greedy, without the sampling settings and the repetition penalty of the checkpoint's
    generation_config.json.

    Args:
        spec: From `describe_model`.
        decoder: Layers, embedding and output projection.
        tokenizer: The checkpoint's.
        eos_ids: Tokens that end a reply.
    """

    def __init__(
        self,
        spec: ModelSpec,
        decoder: Decoder,
        tokenizer: PreTrainedTokenizerBase,
        eos_ids: frozenset[int],
    ) -> None:
        self.spec = spec
        self.decoder = decoder
        self.tokenizer = tokenizer
        self.generator = GreedyGenerator(
            decoder, eos_ids, lambda ids: str(tokenizer.decode(ids, skip_special_tokens=True))
        )

    @abstractmethod
    def lay_out(
        self, video: CompressedVideo, prompt: Prompt, positions: Positions = "renumbered"
    ) -> LaidOutPrompt:
        """Put text and clip in the order of the sequence, with their positions.

        Raises:
            ValueError: If the tokens are not as wide as the decoder.
        """

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
        are then shares of the time spent together; see `GreedyGenerator.answer`.
        """
        return self.generator.answer(
            [self.lay_out(video, prompt, positions) for prompt in prompts],
            pruner=pruner,
            max_new_tokens=max_new_tokens,
            share_prefix=share_prefix,
        )

    def _check_width(self, video: CompressedVideo) -> None:
        """Refuse tokens of another model."""
        width = self.spec.llm.hidden_size
        if video.tokens.shape[1] != width:
            raise ValueError(
                f"video tokens have width {video.tokens.shape[1]}, but model {self.spec.name} has "
                f"{width}; encode the clip with the same checkpoint"
            )

    def _tokenize(self, text: str) -> tuple[int, ...]:
        """Token ids of a piece of the conversation."""
        return tuple(self.tokenizer(text, add_special_tokens=False).input_ids)


def tied_output(tied: bool) -> dict[str, str] | None:
    """Which weight stands in for the output projection in checkpoints that store it once."""
    return {"lm_head.weight": "language_model.embed_tokens.weight"} if tied else None
