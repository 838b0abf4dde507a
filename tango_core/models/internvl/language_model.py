"""The language half of InternVL: the layers of Qwen3 (or Qwen2) and the output projection."""

from __future__ import annotations

import torch
from torch import nn
from transformers import AutoModel, InternVLConfig

from tango_core.models.base import ModelSpec
from tango_core.models.checkpoints.directory import Checkpoint, resolve_checkpoint
from tango_core.models.checkpoints.tokenizer import load_tokenizer, read_eos_ids
from tango_core.models.checkpoints.weights import load_module, tensor_names, tied_output
from tango_core.models.internvl.checkpoint import (
    language_half,
    read_internvl_config,
    read_internvl_extras,
)
from tango_core.models.internvl.layout import InternVLPromptLayout
from tango_core.models.language.model import LayoutAndEngine
from tango_core.models.language.native import NativeEngine
from tango_core.models.placement import resolve_devices


class InternVLLanguageHalf(nn.Module):
    """Layers and output projection, named as in the checkpoint."""

    def __init__(self, config: InternVLConfig) -> None:
        super().__init__()
        text = config.text_config
        self.language_model = AutoModel.from_config(text, attn_implementation="sdpa")
        self.lm_head = nn.Linear(text.hidden_size, text.vocab_size, bias=False)


def load_internvl_language_model(spec: ModelSpec) -> LayoutAndEngine:
    """Load embedding, layers and output projection of InternVL.

    Args:
        spec: From `describe_model`.

    Raises:
        FileNotFoundError: If weights or tokenizer are missing.
        ValueError: If weights and configuration do not fit.
    """
    checkpoint = resolve_checkpoint(spec.path, spec.revision)
    config = read_internvl_config(checkpoint)
    half = load_module(
        lambda: InternVLLanguageHalf(config),
        checkpoint,
        language_half,
        dtype=getattr(torch, spec.dtype),
        device=resolve_devices(spec.device),
        tied=tied_output(_is_tied(checkpoint, config)),
    )
    tokenizer = load_tokenizer(checkpoint, config.text_config)
    layout = InternVLPromptLayout(spec, tokenizer, read_internvl_extras(checkpoint).chat)
    eos_ids = read_eos_ids(checkpoint, config, tokenizer)
    engine = NativeEngine(half, layout.decode, eos_ids, compiles=spec.compile)
    return LayoutAndEngine(spec, layout, engine)


def _is_tied(checkpoint: Checkpoint, config: InternVLConfig) -> bool:
    """Whether embedding and output projection are one matrix; a stored projection is used."""
    stored = any(language_half(name) == "lm_head.weight" for name in tensor_names(checkpoint))
    return bool(config.tie_word_embeddings) and not stored
