"""Whether `model.compile` pays: for the vision tower, and for the prefill of a clip.

On a CPU it does not pay for the tower (`tests/perf/results/real_geometry.md`).
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor

from tango_core.compressors import build_method
from tango_core.latency import LatencyProfile
from tango_core.models import kernels
from tango_core.types import Prompt
from tests.gpu.bench_answers import GEOMETRY, language_model
from tests.gpu.clips import make_clip, moved
from tests.gpu.command import Rows, Run, synchronize
from tests.gpu.halves import (
    described,
    geometry,
    loaded_encoder,
    loaded_language_model,
    noise_frames,
)

QUESTION = Prompt("", "Question: What does the person in the video do?\nA. Cook\nB. Run\nAnswer: ")
# Prompts of many lengths go through one program; two are measured.
RETENTIONS = (1.0, 0.1)


def bench_compile(run: Run) -> Rows:
    """One clip through the tower, and its prefill at two retentions, as they are and compiled."""
    repeats, shrink, num_frames = (1, 28, 4) if run.small else (5, 1, 32)
    rows: Rows = []
    with geometry(GEOMETRY, shrink=shrink) as path, _backend(run):
        for compile in (False, True):
            spec = described(GEOMETRY, path, run.device, "bfloat16", num_frames, compile=compile)
            rows += _tower(run, spec, repeats)
            model = loaded_language_model(spec) if compile else language_model(run)[0]
            rows += _prefill(run, spec, model, repeats)
            del model
            run.forget()  # there is room for one of them, and compiled layers are others
    torch.compiler.reset()
    return _compared(rows)


def _tower(run: Run, spec: Any, repeats: int) -> Rows:
    """Tokens of one clip."""
    torch.manual_seed(0)
    encoder, frames = loaded_encoder(spec), noise_frames(spec)

    def tokens() -> Tensor:
        found: Tensor = encoder.encode(frames).tokens
        synchronize(run)
        return found

    first, first_s = _first(tokens)
    profile = LatencyProfile(run.device, warm_up=0)
    for _ in range(repeats):
        with profile.clip(), profile.stage("vision"):
            tokens()
    ms = float(profile.summary()["vision"]["p50"])
    facts = {"part": "tower", "tokens": first.shape[0] * first.shape[1]}
    return [{**facts, "compile": spec.compile, "first s": first_s, "ms": ms, "result": first}]


def _prefill(run: Run, spec: Any, model: Any, repeats: int) -> Rows:
    """One question after one clip, all of it and a tenth."""
    shape = (spec.frames.num_frames, spec.grid, spec.llm.hidden_size)
    clip = moved(make_clip(*shape), run.device, torch.bfloat16)
    rows: Rows = []
    for retention in RETENTIONS:
        video = build_method("uniform", retention=retention).compressor.compress(clip)

        def prefill_ms(video: Any = video) -> float:
            (reply,) = model.answer(video, [QUESTION], max_new_tokens=1, share_prefix=False)
            return float(reply.prefill_ms)

        _, first_s = _first(prefill_ms)
        ms = sorted(prefill_ms() for _ in range(repeats))[repeats // 2]
        facts = {"part": "prefill", "tokens": video.num_kept}
        rows.append({**facts, "compile": spec.compile, "first s": first_s, "ms": ms})
    return rows


def _compared(rows: Rows) -> Rows:
    """Without the tokens themselves; what is compiled beside what is not."""
    half = len(rows) // 2
    results = [row.pop("result", None) for row in rows]
    for plain, compiled, before, after in zip(
        rows[:half], rows[half:], results[:half], results[half:], strict=True
    ):
        compiled["speed-up"] = plain["ms"] / compiled["ms"]
        if before is not None:
            error = (after.float() - before.float()).norm() / before.float().norm()
            compiled["relative difference"] = float(error)
    return rows


@contextmanager
def _backend(run: Run) -> Iterator[None]:
    """Inductor writes C++ for a CPU; the small run only shows that this program works."""
    stock = kernels.BACKEND
    kernels.BACKEND = stock if run.device.type == "cuda" else "aot_eager"
    try:
        yield
    finally:
        kernels.BACKEND = stock


def _first(work: Callable[[], Any]) -> tuple[Any, float]:
    """What the first call gives, and its seconds."""
    begun = time.perf_counter()
    result = work()
    return result, time.perf_counter() - begun
