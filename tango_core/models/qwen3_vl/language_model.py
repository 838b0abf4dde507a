"""The language half of Qwen3-VL: its layers and output projection."""

from __future__ import annotations

import torch
from torch import nn
from transformers import Qwen3VLConfig
from transformers.models.qwen3_vl.modeling_qwen3_vl import Qwen3VLTextModel

from tango_core.models.base import ModelSpec
from tango_core.models.checkpoints.directory import resolve_checkpoint
from tango_core.models.checkpoints.tokenizer import load_tokenizer, read_eos_ids
from tango_core.models.checkpoints.weights import load_module, tied_output
from tango_core.models.language.model import LayoutAndEngine
from tango_core.models.language.native import NativeEngine
from tango_core.models.placement import resolve_devices
from tango_core.models.qwen3_vl.checkpoint import (
    language_half,
    read_qwen3_config,
    read_qwen3_extras,
)
from tango_core.models.qwen3_vl.layout import Qwen3PromptLayout


class Qwen3LanguageHalf(nn.Module):
    """Layers and output projection, named as in the checkpoint."""

    def __init__(self, config: Qwen3VLConfig) -> None:
        super().__init__()
        text = config.text_config
        self.language_model = Qwen3VLTextModel._from_config(text, attn_implementation="sdpa")
        self.lm_head = nn.Linear(text.hidden_size, text.vocab_size, bias=False)


def load_qwen3_language_model(spec: ModelSpec) -> LayoutAndEngine:
    """Load embedding, layers and output projection of Qwen3-VL.

    Args:
        spec: From `describe_model`.

    Raises:
        FileNotFoundError: If weights or tokenizer are missing.
        ValueError: If weights and configuration do not fit.
    """
    checkpoint = resolve_checkpoint(spec.path, spec.revision)
    config = read_qwen3_config(checkpoint)
    half = load_module(
        lambda: Qwen3LanguageHalf(config),
        checkpoint,
        language_half,
        dtype=getattr(torch, spec.dtype),
        device=resolve_devices(spec.device),
        # transformers reads it from the top of config.json alone.
        tied=tied_output(config.tie_word_embeddings),
    )
    tokenizer = load_tokenizer(checkpoint)
    layout = Qwen3PromptLayout(spec, tokenizer, read_qwen3_extras(checkpoint).chat, config)
    eos_ids = read_eos_ids(checkpoint, config, tokenizer)
    engine = NativeEngine(half, layout.decode, eos_ids, compiles=spec.compile)
    return LayoutAndEngine(spec, layout, engine)
