"""The language half of LLaVA-OneVision and LLaVA-Video: Qwen2 layers and the newline token."""

from __future__ import annotations

import torch
from torch import nn
from transformers import AutoModel, LlavaOnevisionConfig

from tango_core.models.base import ModelSpec
from tango_core.models.checkpoints.directory import resolve_checkpoint
from tango_core.models.checkpoints.tokenizer import load_tokenizer, read_eos_ids
from tango_core.models.checkpoints.weights import load_module, tied_output
from tango_core.models.language.model import LayoutAndEngine
from tango_core.models.language.native import NativeEngine
from tango_core.models.llava.checkpoint import LANGUAGE, half_of, read_config, read_llava_extras
from tango_core.models.llava.layout import LlavaPromptLayout
from tango_core.models.llava.options import Newlines
from tango_core.models.placement import resolve_devices


class LanguageHalf(nn.Module):
    """Layers, output projection and newline token, named as in the checkpoint."""

    def __init__(self, config: LlavaOnevisionConfig) -> None:
        super().__init__()
        text = config.text_config
        self.language_model = AutoModel.from_config(text, attn_implementation="sdpa")
        self.lm_head = nn.Linear(text.hidden_size, text.vocab_size, bias=False)
        self.image_newline = nn.Parameter(torch.empty(text.hidden_size))


def load_llava_language_model(spec: ModelSpec, newlines: Newlines) -> LayoutAndEngine:
    """Load embedding, Qwen2 layers, output projection and newline token of a LLaVA model.

    Args:
        spec: From `describe_model`.
        newlines: Where the model expects newlines among a clip's tokens.

    Raises:
        FileNotFoundError: If weights or tokenizer are missing.
        ValueError: If weights and configuration do not fit.
    """
    checkpoint = resolve_checkpoint(spec.path, spec.revision)
    config = read_config(checkpoint)
    half = load_module(
        lambda: LanguageHalf(config),
        checkpoint,
        half_of(LANGUAGE),
        dtype=getattr(torch, spec.dtype),
        device=resolve_devices(spec.device),
        tied=tied_output(config.tie_word_embeddings),
    )
    tokenizer = load_tokenizer(checkpoint, config.text_config)
    layout = LlavaPromptLayout(
        spec,
        tokenizer,
        read_llava_extras(checkpoint).chat,
        half.image_newline,
        newlines,
        config.vision_config.image_size,
    )
    eos_ids = read_eos_ids(checkpoint, config, tokenizer)
    engine = NativeEngine(half, layout.decode, eos_ids, compiles=spec.compile)
    return LayoutAndEngine(spec, layout, engine)
