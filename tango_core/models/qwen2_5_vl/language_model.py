"""The language half of Qwen2.5-VL: its layers and output projection."""

from __future__ import annotations

import torch
from torch import nn
from transformers import Qwen2_5_VLConfig
from transformers.models.qwen2_5_vl.modeling_qwen2_5_vl import Qwen2_5_VLTextModel

from tango_core.models.base import ModelSpec
from tango_core.models.checkpoints.directory import resolve_checkpoint
from tango_core.models.checkpoints.tokenizer import load_tokenizer, read_eos_ids
from tango_core.models.checkpoints.weights import load_module, tied_output
from tango_core.models.language.model import LayoutAndEngine
from tango_core.models.language.native import NativeEngine
from tango_core.models.placement import resolve_devices
from tango_core.models.qwen2_5_vl.checkpoint import (
    language_half,
    read_qwen_config,
    read_qwen_extras,
)
from tango_core.models.qwen2_5_vl.layout import QwenPromptLayout


class QwenLanguageHalf(nn.Module):
    """Layers and output projection, named as in the checkpoint."""

    def __init__(self, config: Qwen2_5_VLConfig) -> None:
        super().__init__()
        text = config.text_config
        self.language_model = Qwen2_5_VLTextModel._from_config(text, attn_implementation="sdpa")
        self.lm_head = nn.Linear(text.hidden_size, text.vocab_size, bias=False)


def load_qwen_language_model(spec: ModelSpec) -> LayoutAndEngine:
    """Load embedding, layers and output projection of Qwen2.5-VL.

    Args:
        spec: From `describe_model`.

    Raises:
        FileNotFoundError: If weights or tokenizer are missing.
        ValueError: If weights and configuration do not fit.
    """
    checkpoint = resolve_checkpoint(spec.path, spec.revision)
    config = read_qwen_config(checkpoint)
    half = load_module(
        lambda: QwenLanguageHalf(config),
        checkpoint,
        language_half,
        dtype=getattr(torch, spec.dtype),
        device=resolve_devices(spec.device),
        tied=tied_output(config.tie_word_embeddings),
    )
    tokenizer = load_tokenizer(checkpoint)
    layout = QwenPromptLayout(spec, tokenizer, read_qwen_extras(checkpoint).chat, config)
    eos_ids = read_eos_ids(checkpoint, config, tokenizer)
    engine = NativeEngine(half, layout.decode, eos_ids, compiles=spec.compile)
    return LayoutAndEngine(spec, layout, engine)
