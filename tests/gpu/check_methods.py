"""Every method and its plan on the device against the CPU; a full GPU."""

from __future__ import annotations

import copy
from dataclasses import fields, replace
from functools import partial
from typing import Any

import torch
from torch import nn
from transformers import Qwen2Config, Qwen2ForCausalLM

from tango_core.combination import Combination
from tango_core.compressors import METHODS, build_method
from tango_core.compressors.base import Compressor, LayerPruner
from tango_core.compressors.contract.inputs import make_clip
from tango_core.compressors.hybrid import INNER, checked_inner
from tango_core.compressors.options import option_names
from tango_core.models.language.engine import NativeEngine
from tango_core.models.language.prompt import LaidOutPrompt, TextTokens, VisualTokens
from tango_core.models.memory_faults import again_with_memory_freed, is_out_of_memory
from tango_core.types import CompressedVideo, VisualFeatures
from tests.gpu.command import Rows, Run, equal_replies, tried

RETENTION = 0.2
DTYPES = ("float32", "bfloat16", "float16")
# Share of the kept positions that both have. Another order of additions moves what is decided by
# the last bits: seldom in float32, and in half precision wherever two scores round to one.
LEAST_IN_COMMON = {"float32": 0.98, "bfloat16": 0.75, "float16": 0.9}
# One near tie changes every later pick of DivPrune; what it maximises may differ by this share.
GREEDY, LARGEST_GAP_DIFFERENCE = ("divprune",), 1e-3
# Of the token in the middle, of those that both keep.
LARGEST_ERROR = {"float32": 1e-4, "bfloat16": 2e-2, "float16": 2e-3}
# Of a plan, as a share of what is largest in a clip; sums may be made in another order on a device.
LARGEST_DIFFERENCE = {"float32": 1e-5, "bfloat16": 1e-2, "float16": 2e-3}
NUM_LAYERS, VOCABULARY, NEW_TOKENS = 8, 128, 6
BEFORE, QUESTIONS = (1, 2, 3, 4), ((5, 6, 7), (8, 9, 10, 11), (12, 13))
# As tests/perf and the papers have them, for 8 layers.
OPTIONS = {
    "pyramiddrop": {"retention": 0.46875},
    "framefusion": {"retention": 0.4, "similarity": 0.92, "min_merged": 0.0},
}


def compressor_names() -> list[str]:
    """Methods that act before the language model."""
    return [name for name, cls in METHODS.items() if not issubclass(cls, LayerPruner)]


def build_compressor(name: str, retention: float) -> Compressor:
    """A method at a retention, if it has that option."""
    has_retention = "retention" in option_names(METHODS[name])
    return build_method(name, **({"retention": retention} if has_retention else {})).compressor


def moved(clip: VisualFeatures, device: torch.device, dtype: torch.dtype) -> VisualFeatures:
    """The clip on a device; tokens, keys and embeddings in a dtype."""
    changed = {}
    for one in fields(clip):
        value = getattr(clip, one.name)
        if isinstance(value, torch.Tensor):
            kept = one.name == "timestamps" or one.name.endswith(("saliency", "attention"))
            changed[one.name] = value.to(device) if kept else value.to(device, dtype)
    return replace(clip, **changed)


def check_methods(run: Run) -> Rows:
    """Kept positions and tokens of every method, and whether a second call gives the same."""
    clip = make_clip(8, (6, 6), dim=64) if run.small else make_clip(32, (14, 14), dim=896)
    rows = []
    for dtype in DTYPES:
        for name in compressor_names():
            facts = {"method": name, "dtype": dtype}
            rows.append(tried(facts, partial(_compared, name, clip, dtype, run)))
    return rows


def _compared(name: str, clip: VisualFeatures, dtype: str, run: Run) -> dict[str, Any]:
    """One method in one precision."""
    precision = getattr(torch, dtype)
    method = build_compressor(name, RETENTION)
    here_features, there_features = (
        moved(clip, device, precision) for device in (torch.device("cpu"), run.device)
    )
    here = method.compress(here_features)
    there, again = (method.compress(there_features) for _ in range(2))
    common = in_common(here, there)
    error = token_error(here, there)
    repeats = bool(
        there.indices.shape == again.indices.shape
        and (there.indices == again.indices).all()
        and (there.tokens == again.tokens).all()
    )
    fits = common >= LEAST_IN_COMMON[dtype] and error <= LARGEST_ERROR[dtype]
    if not fits and name in GREEDY:
        gaps = [smallest_gap(clip.tokens.flatten(0, 1), kept.indices) for kept in (here, there)]
        fits = abs(gaps[0] - gaps[1]) <= LARGEST_GAP_DIFFERENCE * gaps[0]
    fits &= there.tokens.device.type == run.device.type
    row = {
        "kept": there.num_kept,
        "in common": common,
        "median error": error,
        "repeats": repeats,
    }
    if method.has_plan:  # made on the device, applied on the CPU
        applied = _on_cpu(method.plan(there_features)).apply(here_features.tokens)
        row["difference of its plan"] = float("inf")
        if torch.equal(there.indices.cpu(), applied.indices):
            off = (there.tokens.cpu().float() - applied.tokens.float()).abs().max()
            row["difference of its plan"] = float(off / clip.tokens.abs().max())
        fits &= row["difference of its plan"] <= LARGEST_DIFFERENCE[dtype]
    return {**row, "ok": fits and repeats}


def in_common(one: CompressedVideo, other: CompressedVideo) -> float:
    """Share of the kept positions that both have."""
    first, second = set(one.indices.tolist()), set(other.indices.tolist())
    return len(first & second) / max(1, len(first | second))


def smallest_gap(tokens: torch.Tensor, kept: torch.Tensor) -> float:
    """Smallest 1 - cosine between two kept tokens, in float64."""
    units = torch.nn.functional.normalize(tokens[kept.cpu()].double(), dim=1)
    return float((1 - units @ units.mT).fill_diagonal_(torch.inf).min())


def token_error(one: CompressedVideo, other: CompressedVideo) -> float:
    """Median relative difference of the tokens at positions that both have."""
    mine, theirs = one.indices.cpu(), other.indices.cpu()
    expected = one.tokens.float().cpu()[torch.isin(mine, theirs)]
    found = other.tokens.float().cpu()[torch.isin(theirs, mine)]
    if not len(expected):
        return float("inf")
    errors = (expected - found).norm(dim=1) / expected.norm(dim=1).clamp_min(1e-12)
    return float(errors.median())


def _on_cpu(plan: Combination) -> Combination:
    """The plan in host memory."""
    parts: dict[str, Any] = {
        name: part.cpu() for name, part in vars(plan).items() if isinstance(part, torch.Tensor)
    }
    return replace(plan, **parts, drawing=None)


def check_pruners(run: Run) -> Rows:
    """Replies of eight layers under every method inside the language model."""
    width, frames = (64, 4) if run.small else (256, 16)
    half = _half(width)
    prompts = [_prompt(width, frames, question) for question in QUESTIONS]
    expected = {name: _replies(half, prompts, _pruner(name)) for name in pruner_names()}
    rows = []
    for dtype in DTYPES:
        moved = copy.deepcopy(half).to(run.device, getattr(torch, dtype))
        for name, said in expected.items():
            compare = partial(_compared_replies, moved, prompts, name, said, dtype)
            rows.append(tried({"pruner": name, "dtype": dtype}, compare))
    return rows


def _compared_replies(
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
    clip = make_clip(num_frames, (6, 6), dim=width)
    tokens = clip.tokens.flatten(0, 1)
    visual = VisualTokens(tokens, torch.arange(len(tokens)), (num_frames, 6, 6))
    length = len(BEFORE) + len(tokens) + len(question)
    return LaidOutPrompt((TextTokens(BEFORE), visual, TextTokens(question)), torch.arange(length))


def _replies(half: nn.Module, prompts: list[LaidOutPrompt], pruner: LayerPruner) -> list[str]:
    """Token ids of the replies as text."""
    engine = NativeEngine(half, lambda ids: " ".join(map(str, ids)), frozenset())
    answers = engine.answer(prompts, pruner=pruner, max_new_tokens=NEW_TOKENS)
    return [answer.text for answer in answers]


def check_full_memory(run: Run) -> Rows:
    """Work that does not fit is tried a second time, and then is an error that names memory."""
    return [
        tried({"room": room}, partial(_full, run, fits))
        for room, fits in (("at the second try", True), ("never", False))
    ]


def _full(run: Run, fits: bool) -> dict[str, Any]:
    """Allocate what no device has, in every try or in the first one alone."""
    tries = 0

    def work() -> int:
        nonlocal tries
        tries += 1
        torch.empty(2**50 if tries == 1 or not fits else 16, dtype=torch.uint8, device=run.device)
        return tries

    try:
        again_with_memory_freed(work)
        refused = False
    except Exception as error:
        refused = is_out_of_memory(error)
    works = float(torch.ones(2, device=run.device).sum()) == 2.0
    ok = tries == 2 and refused is not fits and works
    return {"tries": tries, "refused": refused, "device works": works, "ok": ok}
