"""The language half of every family: stock layers, output projection, layout and engine."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn
from transformers import AutoModel

from tango_core.models.base import ModelSpec
from tango_core.models.checkpoints.directory import resolve_checkpoint
from tango_core.models.checkpoints.tokenizer import load_tokenizer, read_eos_ids
from tango_core.models.checkpoints.weights import load_module, tied_output
from tango_core.models.files import FamilyFiles
from tango_core.models.language.engine import LayoutAndEngine, NativeEngine
from tango_core.models.language.prompt import PromptLayout
from tango_core.models.placement import resolve_devices


class LanguageHalf(nn.Module):
    """Layers, output projection and newline token, named as in the checkpoint.

    Args:
        text: Configuration of the language model.
        has_newline: Whether there is a newline token.
    """

    image_newline: nn.Parameter

    def __init__(self, text: Any, has_newline: bool) -> None:
        super().__init__()
        self.language_model = AutoModel.from_config(text, attn_implementation="sdpa")
        self.lm_head = nn.Linear(text.hidden_size, text.vocab_size, bias=False)
        if has_newline:
            self.image_newline = nn.Parameter(torch.empty(text.hidden_size))


def load_language_half(
    spec: ModelSpec, files: FamilyFiles, layout_class: type[PromptLayout]
) -> LayoutAndEngine:
    """Load embedding, layers and output projection; no weight of the tower is read.

    Args:
        spec: From `describe_model`.
        files: Files of the family.
        layout_class: Prompt layout of the family.

    Raises:
        FileNotFoundError: If weights or tokenizer are missing.
        ValueError: If weights and configuration do not fit.
    """
    checkpoint = resolve_checkpoint(spec.path, spec.revision)
    config = files.read_config(checkpoint)
    half = load_module(
        lambda: LanguageHalf(config.text_config, files.has_newline),
        checkpoint,
        files.rename("language"),
        dtype=getattr(torch, spec.dtype),
        device=resolve_devices(spec.device),
        tied=tied_output(config.tie_word_embeddings),
    )
    tokenizer = load_tokenizer(checkpoint, config.text_config)
    layout = layout_class(spec, tokenizer, files.extras(checkpoint).chat, config, half)
    eos_ids = read_eos_ids(checkpoint, config, tokenizer)
    engine = NativeEngine(half, layout.decode, eos_ids, compiles=spec.compile)
    return LayoutAndEngine(spec, layout, engine)
