"""How Qwen2.5-VL puts text and clip in one sequence: a clip between two marks, 3-D positions."""

from __future__ import annotations

from transformers import PreTrainedTokenizerBase, Qwen2_5_VLConfig

from tango_core.models.base import ModelSpec
from tango_core.models.language.chat import ChatFormat
from tango_core.models.language.prompt import LaidOutPrompt, PromptLayout, TextTokens, VisualTokens
from tango_core.models.qwen2_5_vl.options import options_of
from tango_core.models.qwen2_5_vl.positions import clip_extent, clip_positions, sequence_positions
from tango_core.types import CompressedVideo, Positions, Prompt


class QwenPromptLayout(PromptLayout):
    """Opening, what the protocol says before the clip, mark, clip, mark, question.

    Args:
        spec: From `describe_model`.
        tokenizer: The checkpoint's.
        chat: Text around clip and question.
        config: Of the whole model.
    """

    def __init__(
        self,
        spec: ModelSpec,
        tokenizer: PreTrainedTokenizerBase,
        chat: ChatFormat,
        config: Qwen2_5_VLConfig,
    ) -> None:
        super().__init__(spec, tokenizer, chat)
        self._config = config
        self._options = options_of(spec)

    def cut(
        self, video: CompressedVideo, prompt: Prompt
    ) -> tuple[tuple[int, ...], tuple[int, ...]]:
        """Ids up to the first mark and from the second on; see `PromptLayout.cut`."""
        words = self.chat.after_clip + prompt.after + self.chat.closing
        left = (
            *self.tokenize(self.chat.opening + prompt.before),
            self._config.vision_start_token_id,
        )
        return left, (self._config.vision_end_token_id, *self.tokenize(words))

    def lay_out(
        self, video: CompressedVideo, prompt: Prompt, positions: Positions = "renumbered"
    ) -> LaidOutPrompt:
        """Put text and clip in the order of the sequence, with their three-dimensional positions.

        Text behind the clip starts where it would behind the full clip, however many tokens were
        dropped, so `positions` makes no difference: every token keeps its coordinates in the full
        clip.

        Raises:
            ValueError: If the tokens are not as wide as the language model.
        """
        self.raise_if_wrong_width(video)
        left, right = self.cut(video, prompt)
        indices = video.indices.cpu()
        pace = (self._config.vision_config.tokens_per_second, self._options.seconds_per_grid)
        extent = clip_extent(video.grid, *pace, self._options.position_rule)
        clip = clip_positions(indices, video.grid, *pace)
        return LaidOutPrompt(
            spans=(
                TextTokens(left),
                VisualTokens(video.tokens, indices, video.grid),
                TextTokens(right),
            ),
            positions=sequence_positions(len(left), clip, extent, len(right)),
        )
