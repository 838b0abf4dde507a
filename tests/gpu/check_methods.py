"""Every method on the device against the same on the CPU, and its plans applied on the CPU."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from typing import Any

import torch

from tango_core.combination import Combination
from tango_core.compressors import METHODS, build_method
from tango_core.compressors.base import Compressor, LayerPruner
from tango_core.compressors.options import option_names
from tango_core.types import CompressedVideo, VisualFeatures
from tests.gpu.clips import make_clip, moved
from tests.gpu.command import Rows, Run, tried

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


def compressor_names() -> list[str]:
    """Methods that act before the language model."""
    return [name for name, cls in METHODS.items() if not issubclass(cls, LayerPruner)]


def build_compressor(name: str, retention: float) -> Compressor:
    """A method at a retention, if it has that option."""
    has_retention = "retention" in option_names(METHODS[name])
    return build_method(name, **({"retention": retention} if has_retention else {})).compressor


def check_methods(run: Run) -> Rows:
    """Kept positions and tokens of every method, and whether a second call gives the same."""
    clip = make_clip(8, (6, 6), 64) if run.small else make_clip(32, (14, 14), 896)
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
    here = method.compress(moved(clip, torch.device("cpu"), precision))
    there_features = moved(clip, run.device, precision)
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
    return {
        "kept": there.num_kept,
        "in common": common,
        "median error": error,
        "repeats": repeats,
        "ok": fits and repeats,
    }


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
    first = {position: row for row, position in enumerate(one.indices.tolist())}
    pairs = [
        (first[position], row)
        for row, position in enumerate(other.indices.tolist())
        if position in first
    ]
    if not pairs:
        return float("inf")
    mine, theirs = map(torch.tensor, zip(*pairs, strict=True))
    expected = one.tokens.float().cpu()[mine]
    found = other.tokens.float().cpu()[theirs]
    errors = (expected - found).norm(dim=1) / expected.norm(dim=1).clamp_min(1e-12)
    return float(errors.median())


def check_plans(run: Run) -> Rows:
    """Every method with a plan: equal positions, and the largest difference of a value."""
    clip = make_clip(8, (6, 6), 64) if run.small else make_clip(32, (14, 14), 896)
    return [
        tried({"method": name, "dtype": dtype}, partial(_applied, name, clip, dtype, run))
        for dtype in DTYPES
        for name in compressor_names()
        if build_compressor(name, RETENTION).has_plan
    ]


def _applied(name: str, clip: VisualFeatures, dtype: str, run: Run) -> dict[str, Any]:
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
