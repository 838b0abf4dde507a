"""How long every method before the language model takes on a clip that is on the device."""

from __future__ import annotations

from functools import partial
from typing import Any

import numpy as np
import torch

from tango_core.compressors.base import Compressor
from tango_core.latency import LatencyProfile
from tango_core.types import VisualFeatures
from tests.gpu.check_methods import build_compressor, compressor_names
from tests.gpu.clips import make_clip, moved
from tests.gpu.command import Rows, Run, gib, reset_peak, tried

# LLaVA-OneVision with 32 frames, LLaVA-Video with 64: frames, rows and columns, channels.
SIZES = ((32, (14, 14), 3584), (64, (13, 13), 3584))
SMALL_SIZES = ((4, (4, 4), 32), (8, (3, 3), 32))
RETENTION = 0.1
TARGET_MS = 3.0  # of Tango on an H100


def bench_compress(run: Run) -> Rows:
    """Milliseconds of every method, bfloat16, after a warm-up."""
    repeats, warm_up = (2, 1) if run.small else (20, 3)
    rows = []
    for num_frames, grid, width in SMALL_SIZES if run.small else SIZES:
        clip = moved(make_clip(num_frames, grid, width), run.device, torch.bfloat16)
        for name in compressor_names():
            facts = {
                "method": name,
                "clip": f"{num_frames} x {grid[0] * grid[1]} x {width}",
                "target ms": TARGET_MS if name == "tango" else None,
            }
            measure = partial(_measured, run, build_compressor(name, RETENTION), clip)
            rows.append(tried(facts, partial(measure, repeats, warm_up)))
    return rows


def _measured(
    run: Run, compressor: Compressor, clip: VisualFeatures, repeats: int, warm_up: int
) -> dict[str, Any]:
    """One method on one clip."""
    profile = LatencyProfile(run.device, warm_up=warm_up)
    reset_peak(run)
    for _ in range(warm_up + repeats):
        with profile.clip(), profile.stage("compress"):
            kept = compressor.compress(clip)
    times = np.array([one.stage_ms["compress"] for one in profile.clips])
    return {
        "kept": kept.num_kept,
        "median ms": float(np.median(times)),
        "smallest ms": float(times.min()),
        "p90 ms": float(np.percentile(times, 90)),
        "peak GiB": gib(run),
    }
