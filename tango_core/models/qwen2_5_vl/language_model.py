"""The language half of Qwen2.5-VL: its decoder, and a clip between two marks."""

from __future__ import annotations

import torch
from torch import nn
from transformers import Qwen2_5_VLConfig
from transformers.models.qwen2_5_vl.modeling_qwen2_5_vl import Qwen2_5_VLTextModel

from tango_core.models.base import ModelSpec
from tango_core.models.checkpoints.directory import resolve_checkpoint
from tango_core.models.checkpoints.tokenizer import load_tokenizer, read_eos_ids
from tango_core.models.checkpoints.weights import load_module
from tango_core.models.language.chat import QWEN2_5_VL
from tango_core.models.language.decoder import Decoder
from tango_core.models.language.generation import LaidOutPrompt
from tango_core.models.language.greedy import GreedyLanguageModel, tied_output
from tango_core.models.llava.checkpoint import read_extras
from tango_core.models.placement import resolve_device
from tango_core.models.qwen2_5_vl.checkpoint import language_half, read_qwen_config
from tango_core.models.qwen2_5_vl.positions import clip_extent, clip_positions, sequence_positions
from tango_core.types import CompressedVideo, Positions, Prompt


class QwenLanguageHalf(nn.Module):
    """Decoder and output projection, named as in the checkpoint."""

    def __init__(self, config: Qwen2_5_VLConfig) -> None:
        super().__init__()
        text = config.text_config
        self.language_model = Qwen2_5_VLTextModel._from_config(text, attn_implementation="sdpa")
        self.lm_head = nn.Linear(text.hidden_size, text.vocab_size, bias=False)


class QwenLanguageModel(GreedyLanguageModel):
    """Embedding, decoder and output projection of Qwen2.5-VL.

    Args:
        spec: From `describe_model`.

    Raises:
        FileNotFoundError: If weights or tokenizer are missing.
        ValueError: If weights and configuration do not fit.
    """

    def __init__(self, spec: ModelSpec) -> None:
        checkpoint = resolve_checkpoint(spec.path, spec.revision)
        self.config = read_qwen_config(checkpoint)
        self.model = load_module(
            lambda: QwenLanguageHalf(self.config),
            checkpoint,
            language_half,
            dtype=getattr(torch, spec.dtype),
            device=resolve_device(spec.device),
            tied=tied_output(self.config.tie_word_embeddings),
        )
        self.chat = read_extras(checkpoint, QWEN2_5_VL).chat
        tokenizer = load_tokenizer(checkpoint)
        super().__init__(
            spec,
            Decoder(self.model.language_model, self.model.lm_head),
            tokenizer,
            read_eos_ids(checkpoint, self.config, tokenizer),
        )

    def lay_out(
        self, video: CompressedVideo, prompt: Prompt, positions: Positions = "renumbered"
    ) -> LaidOutPrompt:
        """Put text and clip in the order of the sequence, with their three-dimensional positions.

        What the protocol says before the clip stays there. Text behind the clip starts where it
        would behind the full clip, however many tokens were dropped, so `positions` makes no
        difference: every token keeps its coordinates in the full clip.

        Raises:
            ValueError: If the tokens are not as wide as the decoder.
        """
        self._check_width(video)
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
