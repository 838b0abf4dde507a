"""A plan that was made on the device, applied on the CPU as a stored one, against `compress`."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from typing import Any

import torch

from tango_core.combination import Combination
from tango_core.types import VisualFeatures
from tests.gpu.check_methods import DTYPES, RETENTION, build_compressor, compressor_names
from tests.gpu.clips import make_clip, moved
from tests.gpu.command import Rows, Run, tried

# Of what is largest in a clip; sums may be made in another order on a device.
LARGEST_DIFFERENCE = {"float32": 1e-5, "bfloat16": 1e-2, "float16": 2e-3}


def check_plans(run: Run) -> Rows:
    """Every method with a plan: equal positions, and the largest difference of a value."""
    clip = make_clip(8, (6, 6), 64) if run.small else make_clip(32, (14, 14), 896)
    return [
        tried({"method": name, "dtype": dtype}, partial(_compared, name, clip, dtype, run))
        for dtype in DTYPES
        for name in compressor_names()
        if build_compressor(name, RETENTION).has_plan
    ]


def _compared(name: str, clip: VisualFeatures, dtype: str, run: Run) -> dict[str, Any]:
    """One method in one precision."""
    precision = getattr(torch, dtype)
    method = build_compressor(name, RETENTION)
    there = moved(clip, run.device, precision)
    video, plan = method.compress(there), _on_cpu(method.plan(there))
    applied = plan.apply(moved(clip, torch.device("cpu"), precision).tokens)
    same = torch.equal(video.indices.cpu(), applied.indices)
    difference = float("inf")
    if same:
        off = (video.tokens.cpu().float() - applied.tokens.float()).abs().max()
        difference = float(off / clip.tokens.abs().max())
    return {
        "kept": video.num_kept,
        "largest difference": difference,
        "ok": difference <= LARGEST_DIFFERENCE[dtype],
    }


def _on_cpu(plan: Combination) -> Combination:
    """The plan in host memory."""
    parts: dict[str, Any] = {
        name: part.cpu() for name, part in vars(plan).items() if isinstance(part, torch.Tensor)
    }
    return replace(plan, **parts, drawing=None)
