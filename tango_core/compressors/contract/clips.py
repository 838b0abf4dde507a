"""Small synthetic clips with every signal a method may need."""

from __future__ import annotations

from typing import Any, Literal

import torch
from torch import Tensor

from tango_core.types import VisualFeatures

Kind = Literal["scene", "static", "noise", "duplicates"]
DIM = 32

# Name -> arguments of `make_clip`.
CLIPS: dict[str, dict[str, Any]] = {
    "one-frame": {"num_frames": 1},
    "two-frames": {"num_frames": 2},
    "eight-frames": {"num_frames": 8},
    "not-square": {"num_frames": 5, "grid": (3, 7)},
    "one-token-per-frame": {"num_frames": 6, "grid": (1, 1)},
    "static": {"kind": "static"},
    "noise": {"kind": "noise"},
    "duplicates": {"kind": "duplicates"},
}


def make_clip(
    num_frames: int = 8,
    grid: tuple[int, int] = (4, 4),
    kind: Kind = "scene",
    dtype: torch.dtype = torch.float32,
    seed: int = 0,
    dim: int = DIM,
) -> VisualFeatures:
    """Features of one clip, the same for equal arguments.

    Args:
        num_frames: T.
        grid: (H, W).
        kind: `scene` drifts slowly with a cut in the middle, `static` repeats one frame, `noise`
            has nothing in common between frames, `duplicates` is made of three distinct tokens.
        dtype: Of the tokens.
        seed: Of everything random.
        dim: D.
    """
    generator = torch.Generator().manual_seed(seed)
    tokens_per_frame = grid[0] * grid[1]

    def normal(*shape: int) -> Tensor:
        return torch.randn(*shape, generator=generator)

    if kind == "scene":
        scenes = normal(2, tokens_per_frame, dim)
        tokens = scenes.repeat_interleave(-(-num_frames // 2), 0)[:num_frames]
        tokens = tokens + 0.15 * normal(num_frames, tokens_per_frame, dim)
        tokens[:, ::3] += 2 * normal(num_frames, len(range(0, tokens_per_frame, 3)), dim)
    elif kind == "static":
        tokens = normal(1, tokens_per_frame, dim).expand(num_frames, -1, -1).clone()
    elif kind == "noise":
        tokens = normal(num_frames, tokens_per_frame, dim)
    elif kind == "duplicates":
        which = torch.randint(3, (num_frames, tokens_per_frame), generator=generator)
        tokens = normal(3, dim)[which]
    else:
        raise ValueError(f"unknown kind {kind!r}")
    scores = normal(2, num_frames, tokens_per_frame).softmax(dim=-1)
    return VisualFeatures(
        tokens=tokens.to(dtype),
        grid=grid,
        timestamps=torch.arange(num_frames, dtype=torch.float64) * 1.7,
        saliency=scores[0],
        attention=scores[1],
        keys=normal(num_frames, tokens_per_frame, 8),
        frame_embeddings=tokens.mean(dim=1),
        sinks=(0, tokens_per_frame - 1) if tokens_per_frame > 4 else (),
    )
