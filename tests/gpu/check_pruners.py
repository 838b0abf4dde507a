"""Methods inside the language model, on the device against the same on the CPU."""

from __future__ import annotations

import copy
from functools import partial
from typing import Any

import torch
from torch import nn
from transformers import Qwen2Config, Qwen2ForCausalLM

from tango_core.compressors import METHODS, build_method
from tango_core.compressors.base import LayerPruner
from tango_core.compressors.hybrid import INNER, checked_inner
from tango_core.models.language.engine import NativeEngine
from tango_core.models.language.prompt import LaidOutPrompt, TextTokens, VisualTokens
from tests.gpu.clips import make_clip
from tests.gpu.command import Rows, Run, equal_replies, tried

NUM_LAYERS, VOCABULARY, NEW_TOKENS = 8, 128, 6
BEFORE, QUESTIONS = (1, 2, 3, 4), ((5, 6, 7), (8, 9, 10, 11), (12, 13))
# As tests/perf and the papers have them, for 8 layers.
OPTIONS = {
    "pyramiddrop": {"retention": 0.46875},
    "framefusion": {"retention": 0.4, "similarity": 0.92, "min_merged": 0.0},
}


def check_pruners(run: Run) -> Rows:
    """Replies of eight layers under every method inside the language model."""
    width, frames = (64, 4) if run.small else (256, 16)
    half = _half(width)
    prompts = [_prompt(width, frames, question) for question in QUESTIONS]
    expected = {name: _replies(half, prompts, _pruner(name)) for name in pruner_names()}
    rows = []
    for dtype in ("float32", "bfloat16", "float16"):
        moved = copy.deepcopy(half).to(run.device, getattr(torch, dtype))
        for name, said in expected.items():
            compare = partial(_compared, moved, prompts, name, said, dtype)
            rows.append(tried({"pruner": name, "dtype": dtype}, compare))
    return rows


def _compared(
    half: nn.Module, prompts: list[LaidOutPrompt], name: str, said: list[str], dtype: str
) -> dict[str, Any]:
    """One method in one precision."""
    return equal_replies(said, _replies(half, prompts, _pruner(name)), dtype)


def pruner_names() -> list[str]:
    """Methods that act inside, and the inner steps of hybrids."""
    return [*(name for name, cls in METHODS.items() if issubclass(cls, LayerPruner)), *INNER]


def _pruner(name: str) -> LayerPruner:
    """A pruner that drops about half."""
    if name in INNER:
        inner = {"name": name, "retention": 0.5, "layer": 5}
        return checked_inner("tango", inner, NUM_LAYERS)[1]
    options = OPTIONS.get(name, {"retention": 0.5})
    pruner = build_method(name, num_layers=NUM_LAYERS, **options).pruner
    assert pruner is not None
    return pruner


def _half(width: int) -> nn.Module:
    """Layers whose attention differs from token to token, on the CPU in float32."""
    config = Qwen2Config(
        hidden_size=width,
        intermediate_size=2 * width,
        num_hidden_layers=NUM_LAYERS,
        num_attention_heads=4,
        num_key_value_heads=2,
        vocab_size=VOCABULARY,
        attn_implementation="sdpa",
    )
    torch.manual_seed(0)
    model = Qwen2ForCausalLM(config).eval().requires_grad_(False)
    for name, weight in model.named_parameters():
        if "proj.weight" in name:
            weight.normal_(std=1.4 / width**0.5)
        elif "bias" in name:
            weight.normal_(std=0.1)
    return nn.ModuleDict({"language_model": model.model, "lm_head": model.lm_head})


def _prompt(width: int, num_frames: int, question: tuple[int, ...]) -> LaidOutPrompt:
    """A question about a clip."""
    clip = make_clip(num_frames, (6, 6), width)
    tokens = clip.tokens.flatten(0, 1)
    visual = VisualTokens(tokens, torch.arange(len(tokens)), (num_frames, 6, 6))
    length = len(BEFORE) + len(tokens) + len(question)
    return LaidOutPrompt((TextTokens(BEFORE), visual, TextTokens(question)), torch.arange(length))


def _replies(half: nn.Module, prompts: list[LaidOutPrompt], pruner: LayerPruner) -> list[str]:
    """Token ids of the replies as text."""
    engine = NativeEngine(half, lambda ids: " ".join(map(str, ids)), frozenset())
    answers = engine.answer(prompts, pruner=pruner, max_new_tokens=NEW_TOKENS)
    return [answer.text for answer in answers]
