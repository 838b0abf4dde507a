"""The language half of Qwen2.5-VL: its decoder, and a clip between two marks."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import nn
from transformers import Qwen2_5_VLConfig
from transformers.models.qwen2_5_vl.modeling_qwen2_5_vl import Qwen2_5_VLTextModel

from tango_core.compressors.base import LayerPruner
from tango_core.models.base import LanguageModel, ModelSpec
from tango_core.models.chat import QWEN2_5_VL
from tango_core.models.checkpoint import resolve_checkpoint
from tango_core.models.decoder import Decoder
from tango_core.models.generation import GreedyGenerator, LaidOutPrompt
from tango_core.models.llava_checkpoint import read_extras
from tango_core.models.placement import resolve_device
from tango_core.models.qwen_checkpoint import language_half, read_qwen_config
from tango_core.models.qwen_positions import clip_extent, clip_positions, sequence_positions
from tango_core.models.text import load_tokenizer, read_eos_ids
from tango_core.models.weights import load_module
from tango_core.types import Answer, CompressedVideo, Positions, Prompt


class QwenLanguageHalf(nn.Module):
    """Decoder and output projection, named as in the checkpoint."""

    def __init__(self, config: Qwen2_5_VLConfig) -> None:
        super().__init__()
        text = config.text_config
        self.language_model = Qwen2_5_VLTextModel._from_config(text, attn_implementation="sdpa")
        self.lm_head = nn.Linear(text.hidden_size, text.vocab_size, bias=False)


class QwenLanguageModel(LanguageModel):
    """Embedding, decoder and output projection of Qwen2.5-VL.

    Replies are greedy, without the sampling settings and the repetition penalty of the checkpoint's
    generation_config.json; of that file only the tokens that end a reply are used.

    Args:
        spec: From `describe_model`.

    Raises:
        FileNotFoundError: If weights or tokenizer are missing.
        ValueError: If weights and configuration do not fit.
    """

    def __init__(self, spec: ModelSpec) -> None:
        self.spec = spec
        checkpoint = resolve_checkpoint(spec.path, spec.revision)
        self.config = read_qwen_config(checkpoint)
        self.model = load_module(
            lambda: QwenLanguageHalf(self.config),
            checkpoint,
            language_half,
            dtype=getattr(torch, spec.dtype),
            device=resolve_device(spec.device),
            tied={"lm_head.weight": "language_model.embed_tokens.weight"}
            if self.config.tie_word_embeddings
            else None,
        )
        self.decoder = Decoder(self.model.language_model, self.model.lm_head)
        self.tokenizer = load_tokenizer(checkpoint)
        self.chat = read_extras(checkpoint, QWEN2_5_VL).chat
        self.generator = GreedyGenerator(
            self.decoder,
            read_eos_ids(checkpoint, self.config, self.tokenizer),
            lambda ids: str(self.tokenizer.decode(ids, skip_special_tokens=True)),
        )

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
        """Answer all prompts about one clip, greedily; see `LanguageModel.answer`.

        Prompts share the clip's prefill if they have the same text before it. `positions` makes no
        difference: every token keeps its coordinates in the full clip.
        """
        return self.generator.answer(
            [self.lay_out(video, prompt) for prompt in prompts],
            pruner=pruner,
            max_new_tokens=max_new_tokens,
            share_prefix=share_prefix,
        )

    def lay_out(self, video: CompressedVideo, prompt: Prompt) -> LaidOutPrompt:
        """Put text and clip in the order of the sequence, with their three-dimensional positions.

        What the protocol says before the clip stays there. Text behind the clip starts where it
        would behind the full clip, however many tokens were dropped.

        Raises:
            ValueError: If the tokens are not as wide as the decoder.
        """
        width = self.spec.decoder.hidden_size
        if video.tokens.shape[1] != width:
            raise ValueError(
                f"video tokens have width {video.tokens.shape[1]}, but model {self.spec.name} has "
                f"{width}; encode the clip with the same checkpoint"
            )
        words = self.chat.after_clip + prompt.after + self.chat.closing
        left = (
            *self._tokenize(self.chat.opening + prompt.before),
            self.config.vision_start_token_id,
        )
        right = (self.config.vision_end_token_id, *self._tokenize(words))
        indices = video.indices.cpu()
        pace = (self.config.vision_config.tokens_per_second, self.spec.seconds_per_grid)
        extent = clip_extent(video.grid, *pace, self.spec.position_rule)
        clip = clip_positions(indices, video.grid, *pace)
        return LaidOutPrompt(
            left=left,
            visual=video.tokens,
            visual_indices=indices,
            grid=video.grid,
            right=right,
            positions=sequence_positions(len(left), clip, extent, len(right)),
        )

    def _tokenize(self, text: str) -> tuple[int, ...]:
        """Token ids of a piece of the conversation."""
        return tuple(self.tokenizer(text, add_special_tokens=False).input_ids)
