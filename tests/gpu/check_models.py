"""Towers, the decoder loop and batches on the device against the same on the CPU."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from functools import partial
from itertools import chain
from pathlib import Path
from typing import Any

import torch

from tango_core.models import load_encoder, load_language_model
from tango_core.models.base import ClipPrompts, LanguageModel, ModelSpec
from tango_core.types import CompressedVideo, Prompt, VisualFeatures
from tests.gpu.command import Rows, Run, equal_replies, rows_or_reason
from tests.gpu.halves import described, geometry, noise_frames, write_pooling_head

HEADLESS = "llava-onevision-7b"  # its tower comes without the head that gives saliency
FAMILIES = (HEADLESS, "qwen2.5-vl-7b", "qwen3-vl-8b", "internvl3.5-8b")
SHRINK = 7  # 4 layers of 512 channels
NUM_FRAMES = 4
NEW_TOKENS, FEW_TOKENS = 32, 6
# Largest relative difference of a tower's output.
LARGEST_ERROR = {"float32": 1e-3, "bfloat16": 0.1, "float16": 0.02}
DTYPES = ("float32", "bfloat16", "float16")
PROMPTS = tuple(
    Prompt("", f"Question: What does the person {' '.join(['do'] * length)}?\nAnswer: ")
    for length in (1, 5, 9)
)


@contextmanager
def small_models(run: Run) -> Iterator[dict[str, Path]]:
    """Family -> directory of a shrunken checkpoint."""
    shrink = 28 if run.small else SHRINK
    with ExitStack() as stack:
        yield {
            name: stack.enter_context(geometry(name, shrink=shrink, drawn=True))
            for name in FAMILIES
        }


def check_towers(run: Run) -> Rows:
    """Tokens and signals of all encoders."""
    rows = []
    with small_models(run) as paths, tempfile.TemporaryDirectory(prefix="tango-head-") as folder:
        head = write_pooling_head(paths[HEADLESS], Path(folder))
        with_head = {"saliency_from": str(head)}
        towers: list[tuple[str, str, dict[str, Any]]] = [
            (HEADLESS, HEADLESS, with_head),
            (f"{HEADLESS}, merged frames", HEADLESS, {**with_head, "merge_layers": "0"}),
            *((family, family, {}) for family in FAMILIES[1:]),
        ]
        for name, family, options in towers:
            spec = described(family, paths[family], run.device, "float32", NUM_FRAMES, **options)
            frames, needs = noise_frames(spec), frozenset(spec.provides)
            here = load_encoder(replace(spec, device="cpu")).encode(frames, needs)
            for dtype in DTYPES:
                work = partial(_tower, name, replace(spec, dtype=dtype), here)
                rows += rows_or_reason({"tower": name, "dtype": dtype}, work)
    return rows


def _tower(tower: str, spec: ModelSpec, here: VisualFeatures) -> Rows:
    """One encoder in one precision against the same on the CPU in float32."""
    needs = frozenset(spec.provides)
    there = load_encoder(spec).encode(noise_frames(spec), needs)
    rows = []
    deep = ("companions",) if spec.companions else ()
    for name in ("tokens", *deep, *sorted(needs)):
        expected, found = getattr(here, name), getattr(there, name)
        error = _difference(expected, found)
        rows.append(
            {
                "tower": tower,
                "dtype": spec.dtype,
                "output": name,
                "error": error,
                "ok": error <= LARGEST_ERROR[spec.dtype],
            }
        )
    return rows


def _difference(expected: torch.Tensor, found: torch.Tensor) -> float:
    """Norm of the difference against the norm of what is expected."""
    expected, found = expected.double().cpu(), found.double().cpu()
    return float((expected - found).norm() / expected.norm().clamp_min(1e-12))


def check_replies(run: Run) -> Rows:
    """Replies of all language halves: alone, from a shared prefix, and in one batch of clips."""
    rows = []
    with small_models(run) as paths:
        for family, path in paths.items():
            spec = described(family, path, run.device, "float32", NUM_FRAMES)
            clips = [_clip(spec, seed) for seed in range(3)]
            here = _endless(load_language_model(replace(spec, device="cpu")))
            longest = FEW_TOKENS if run.small else NEW_TOKENS
            expected = [_alone(here, clip, longest) for clip in clips]
            places = [(dtype, spec.device) for dtype in DTYPES]
            if run.device.type == "cuda" and torch.cuda.device_count() > 1:
                places += [("float32", "cuda:0,cuda:1"), ("float32", "cuda:1")]
            for dtype, device in places:
                there = replace(spec, dtype=dtype, device=device)
                work = partial(_replies, family, there, clips, expected, longest)
                rows += rows_or_reason({"model": family, "device": device, "dtype": dtype}, work)
    return rows


def _replies(
    family: str,
    spec: ModelSpec,
    clips: list[CompressedVideo],
    expected: list[list[str]],
    longest: int,
) -> Rows:
    """One language half in one precision against the replies of the CPU in float32."""
    there = _endless(load_language_model(spec))
    rows = []
    for way in ("alone", "shared prefix", "batch"):
        if way == "batch":
            found = _together(there, clips, longest)
        else:
            found = [_alone(there, clip, longest, share=way != "alone") for clip in clips]
        rows.append(
            {
                "model": family,
                "device": spec.device,
                "way": way,
                **equal_replies(chain(*expected), chain(*found), spec.dtype),
            }
        )
    return rows


def _endless(model: Any) -> LanguageModel:
    """A model whose replies go to their bound."""
    model.engine.eos_ids = frozenset()
    return model  # type: ignore[no-any-return]


def _clip(spec: ModelSpec, seed: int) -> CompressedVideo:
    """Half of the tokens of a clip."""
    generator = torch.Generator().manual_seed(seed)
    grid = (NUM_FRAMES, *(spec.grid or (8, 8)))
    total = grid[0] * grid[1] * grid[2]
    tokens = torch.randn(total // 2, spec.llm.hidden_size, generator=generator)
    kept = torch.randperm(total, generator=generator)[: total // 2].sort().values
    companions = None
    if spec.companions:
        shape = (len(tokens), spec.companions, tokens.shape[1])
        companions = torch.randn(shape, generator=generator)
    times = torch.arange(grid[0], dtype=torch.float64)
    return CompressedVideo(tokens, kept, grid, times, companions=companions)


def _alone(
    model: LanguageModel,
    clip: CompressedVideo,
    longest: int,
    *,
    share: bool = False,
) -> list[str]:
    """Replies to all prompts about a clip."""
    answers = model.answer(clip, PROMPTS, max_new_tokens=longest, share_prefix=share)
    return [answer.text for answer in answers]


def _together(model: LanguageModel, clips: list[CompressedVideo], longest: int) -> list[list[str]]:
    """Replies to all prompts about all clips from one session."""
    session, found = model.session(), {}
    requests = [ClipPrompts(clip, PROMPTS, max_new_tokens=longest) for clip in clips]
    for request in requests:
        session.add(request)
    while session.busy:
        for request, answers in session.step():
            if isinstance(answers, Exception):
                raise answers
            found[id(request)] = [answer.text for answer in answers]
    return [found[id(request)] for request in requests]
