"""Questions a second of a 7B language half: from a shared prefix, and many clips in one batch."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import torch

from tango_core.models.base import ClipPrompts, LanguageModel, ModelSpec
from tango_core.types import CompressedVideo, Prompt
from tests.gpu.command import Rows, Run, gib, reset_peak, synchronize
from tests.gpu.halves import described, geometry, loaded_language_model

GEOMETRY = "llava-onevision-7b"
_KEPT = "language model"
RETENTION = 0.1
NEW_TOKENS = 32
QUESTIONS = tuple(
    Prompt("", f"Question: What happens {' '.join(['then'] * index)}?\nA. One\nB. Two\nAnswer: ")
    for index in range(1, 9)
)


def bench_prefix(run: Run) -> Rows:
    """Eight questions about a clip, whose tokens are prefilled once or for each of them."""
    model, spec = language_model(run)
    clip = clip_of(spec, 0, run)
    rows = [
        _measured(run, way, len(QUESTIONS), lambda share=share: _answer(model, clip, share))
        for way, share in (("a prefill for each", False), ("shared prefix", True))
    ]
    return _with_ratios(rows)


def bench_batches(run: Run) -> Rows:
    """One question about each of many clips, one by one and in batches of some tokens."""
    number, alone = (4, 2) if run.small else (48, 12)
    budgets = (64, 512) if run.small else (4096, 16384, 65536)
    model, spec = language_model(run)
    clips = [clip_of(spec, seed, run) for seed in range(number)]
    rows = [_measured(run, "one by one", alone, lambda: _each(model, clips[:alone]))]
    for budget in budgets:
        work = partial(_together, model, clips, budget)
        rows.append(_measured(run, f"{budget} tokens", number, work))
    return _with_ratios(rows)


def language_model(run: Run) -> tuple[LanguageModel, ModelSpec]:
    """The language half, loaded by the first part that asks; `run.forget` gives it back."""
    if _KEPT not in run.kept:
        with geometry(GEOMETRY, shrink=28 if run.small else 1) as path:
            spec = described(GEOMETRY, path, run.device, "bfloat16", 4 if run.small else 32)
            run.kept[_KEPT] = loaded_language_model(spec), spec
    found: tuple[LanguageModel, ModelSpec] = run.kept[_KEPT]
    return found


def clip_of(spec: ModelSpec, seed: int, run: Run) -> CompressedVideo:
    """A tenth of the tokens of a clip."""
    assert spec.grid is not None
    grid = (spec.frames.num_frames, *spec.grid)
    total = grid[0] * grid[1] * grid[2]
    generator = torch.Generator().manual_seed(seed)
    kept = round(total * RETENTION)
    return CompressedVideo(
        torch.randn(kept, spec.llm.hidden_size, generator=generator).bfloat16(),
        torch.randperm(total, generator=generator)[:kept].sort().values,
        grid,
        torch.arange(grid[0], dtype=torch.float64),
    )


def _answer(model: LanguageModel, clip: CompressedVideo, share: bool) -> object:
    """All questions about one clip."""
    return model.answer(clip, QUESTIONS, max_new_tokens=NEW_TOKENS, share_prefix=share)


def _each(model: LanguageModel, clips: Sequence[CompressedVideo]) -> object:
    """A question about each clip, after the one before."""
    return [model.answer(clip, QUESTIONS[:1], max_new_tokens=NEW_TOKENS) for clip in clips]


def _together(model: LanguageModel, clips: Sequence[CompressedVideo], budget: int) -> object:
    """A question about each clip, in one session."""
    session = model.session(budget)
    for clip in clips:
        session.add(ClipPrompts(clip, QUESTIONS[:1], max_new_tokens=NEW_TOKENS))
    done = 0
    while session.busy:
        for _, answers in session.step():
            if isinstance(answers, Exception):
                raise answers
            done += 1
    assert done == len(clips)
    return done


def _measured(run: Run, way: str, questions: int, work: Callable[[], object]) -> dict[str, Any]:
    """Questions a second of the faster of two turns, after a turn to warm up."""
    best = float("inf")
    reset_peak(run)
    for turn in range(2 if run.small else 3):
        synchronize(run)
        begun = time.perf_counter()
        work()
        synchronize(run)
        if turn:
            best = min(best, time.perf_counter() - begun)
    return {
        "way": way,
        "questions": questions,
        "seconds": best,
        "questions/s": questions / best,
        "peak GiB": gib(run),
    }


def _with_ratios(rows: Rows) -> Rows:
    """The same, with how many times as many questions a second as the first way answers."""
    first = rows[0]["questions/s"]
    return [{**row, "ratio": row["questions/s"] / first} for row in rows]
