"""The language half of LLaVA-OneVision and LLaVA-Video: Qwen2 decoder and newline token."""

from __future__ import annotations

import torch
from torch import nn
from transformers import AutoModel, LlavaOnevisionConfig

from tango_core.models.base import ModelSpec
from tango_core.models.checkpoints.directory import resolve_checkpoint
from tango_core.models.checkpoints.tokenizer import load_tokenizer, read_eos_ids
from tango_core.models.checkpoints.weights import load_module
from tango_core.models.language.decoder import Decoder
from tango_core.models.language.generation import LaidOutPrompt
from tango_core.models.language.greedy import GreedyLanguageModel, tied_output
from tango_core.models.llava.checkpoint import LANGUAGE, half_of, read_config, read_extras
from tango_core.models.llava.newlines import Newlines, lay_out_clip
from tango_core.models.llava.time_instruction import time_instruction
from tango_core.models.placement import resolve_device
from tango_core.types import CompressedVideo, Positions, Prompt


class LanguageHalf(nn.Module):
    """Decoder, output projection and newline token, named as in the checkpoint."""

    def __init__(self, config: LlavaOnevisionConfig) -> None:
        super().__init__()
        text = config.text_config
        self.language_model = AutoModel.from_config(text, attn_implementation="sdpa")
        self.lm_head = nn.Linear(text.hidden_size, text.vocab_size, bias=False)
        self.image_newline = nn.Parameter(torch.empty(text.hidden_size))


class LlavaLanguageModel(GreedyLanguageModel):
    """Embedding, Qwen2 decoder, output projection and newline token of a LLaVA model.

    Args:
        spec: From `describe_model`.
        newlines: Where the model expects newlines among a clip's tokens.

    Raises:
        FileNotFoundError: If weights or tokenizer are missing.
        ValueError: If weights and configuration do not fit.
    """

    def __init__(self, spec: ModelSpec, newlines: Newlines) -> None:
        self.newlines = newlines
        checkpoint = resolve_checkpoint(spec.path, spec.revision)
        config = read_config(checkpoint)
        self.model = load_module(
            lambda: LanguageHalf(config),
            checkpoint,
            half_of(LANGUAGE),
            dtype=getattr(torch, spec.dtype),
            device=resolve_device(spec.device),
            tied=tied_output(config.tie_word_embeddings),
        )
        self.chat = read_extras(checkpoint).chat
        self._frame_height = config.vision_config.image_size
        tokenizer = load_tokenizer(checkpoint, config.text_config)
        super().__init__(
            spec,
            Decoder(self.model.language_model, self.model.lm_head),
            tokenizer,
            read_eos_ids(checkpoint, config, tokenizer),
        )

    def lay_out(
        self, video: CompressedVideo, prompt: Prompt, positions: Positions = "renumbered"
    ) -> LaidOutPrompt:
        """Put text and clip in the order of the sequence, with their positions.

        Newlines are visual tokens of position -1 that an in-LLM method may drop like any other.
        Positions count all tokens contiguously (`"renumbered"`: the clip was shortened before ids
        existed), or leave the gaps of the dropped tokens (`"original"`: text after the clip is
        where it would be at full length).

        Raises:
            ValueError: If the tokens are not as wide as the decoder.
        """
        self._check_width(video)
        left = self._tokenize(self.chat.left())
        right = self._tokenize(self.chat.right(prompt, self._about_clip(video)))
        layout = lay_out_clip(video.indices, video.grid, self.newlines)
        places, length = layout.places, layout.full_length
        if positions == "renumbered":
            places, length = torch.arange(len(places)), len(places)
        newline = self.model.image_newline[None]
        # Order -1, a newline, picks the last row.
        rows = torch.cat([video.tokens.to(newline), newline])
        indices = torch.cat([video.indices.cpu(), video.indices.new_tensor([-1]).cpu()])
        return LaidOutPrompt(
            left=left,
            visual=rows[layout.order.to(rows.device)],
            visual_indices=indices[layout.order],
            grid=video.grid,
            right=right,
            positions=torch.cat(
                [
                    torch.arange(len(left)),
                    places + len(left),
                    torch.arange(len(right)) + len(left) + length,
                ]
            ),
        )

    def _about_clip(self, video: CompressedVideo) -> str:
        """The sentence about the clip that goes in front of a question."""
        return time_instruction(video, self.spec.time_instruction, self._frame_height)
