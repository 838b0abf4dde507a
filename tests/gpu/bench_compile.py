"""Whether `torch.compile` pays for the vision tower: on a CPU it does not."""

from __future__ import annotations

import time
from collections.abc import Callable

import torch
from torch import Tensor

from tango_core.latency import LatencyProfile
from tests.gpu.command import Rows, Run, synchronize
from tests.gpu.halves import described, geometry, loaded_encoder, noise_frames

GEOMETRY = "llava-onevision-7b"


def bench_compile(run: Run) -> Rows:
    """One clip through the tower as it is, and with every block compiled."""
    repeats, shrink, num_frames = (1, 28, 4) if run.small else (5, 1, 32)
    # Inductor writes C++ for a CPU; the small run only shows that this program works.
    backend = "inductor" if run.device.type == "cuda" else "aot_eager"
    with geometry(GEOMETRY, shrink=shrink) as path:
        encoder = loaded_encoder(described(GEOMETRY, path, run.device, "bfloat16", num_frames))
    frames = noise_frames(encoder.spec)

    def tokens() -> Tensor:
        found: Tensor = encoder.encode(frames).tokens
        synchronize(run)
        return found

    plain, first_s = _first(tokens)
    eager_ms = _median_ms(run, tokens, repeats)
    rows: Rows = [{"blocks": "eager", "first clip s": first_s, "clip ms": eager_ms}]
    for block in encoder.model.vision_tower.encoder.layers:
        block.compile(backend=backend)
    compiled, first_s = _first(tokens)
    compiled_ms = _median_ms(run, tokens, repeats)
    error = (compiled.float() - plain.float()).norm() / plain.float().norm()
    rows.append(
        {
            "blocks": f"compiled, {backend}",
            "first clip s": first_s,
            "clip ms": compiled_ms,
            "speed-up": eager_ms / compiled_ms,
            "relative difference": float(error),
        }
    )
    torch.compiler.reset()
    return rows


def _first(work: Callable[[], Tensor]) -> tuple[Tensor, float]:
    """What the first call gives, and its seconds."""
    begun = time.perf_counter()
    result = work()
    return result, time.perf_counter() - begun


def _median_ms(run: Run, work: Callable[[], Tensor], repeats: int) -> float:
    """Median of some calls."""
    profile = LatencyProfile(run.device, warm_up=0)
    for _ in range(repeats):
        with profile.clip(), profile.stage("vision"):
            work()
    return float(profile.summary()["vision"]["p50"])
