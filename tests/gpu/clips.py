"""Features that look like a clip's: scenes whose frames have cells in common, and every signal."""

from __future__ import annotations

from dataclasses import fields, replace

import torch
from torch import Tensor

from tango_core.types import VisualFeatures

_KEY_WIDTH = 72


def make_clip(num_frames: int, grid: tuple[int, int], width: int, seed: int = 0) -> VisualFeatures:
    """A clip of scenes of four frames in which half of the cells stay, on the CPU in float32.

    Args:
        num_frames: T, a multiple of 4.
        grid: Rows and columns of the tokens of a frame.
        width: Channels of a token.
        seed: Equal seeds give equal clips.
    """
    generator = torch.Generator().manual_seed(seed)
    num_cells = grid[0] * grid[1]

    def normal(*shape: int) -> Tensor:
        return torch.randn(*shape, generator=generator)

    tokens = normal(num_frames, num_cells, width)
    still = normal(num_frames // 4, num_cells // 2, width).repeat_interleave(4, dim=0)
    tokens[:, : num_cells // 2] = still + 0.1 * tokens[:, : num_cells // 2]
    scores = normal(num_frames, num_cells).softmax(dim=-1)
    return VisualFeatures(
        tokens=tokens,
        grid=grid,
        timestamps=torch.arange(num_frames, dtype=torch.float64) * 2,
        saliency=scores,
        attention=normal(num_frames, num_cells).softmax(dim=-1),
        keys=normal(num_frames, num_cells, _KEY_WIDTH),
        frame_embeddings=tokens.mean(dim=1),
        sinks=(0, num_cells // 2),
        merged_attention=scores,
        question=normal(5, width),
        tower_tokens=normal(num_frames, num_cells, _KEY_WIDTH),
        unpooled_tokens=tokens.repeat_interleave(4, dim=1),
        shallow_attention=normal(num_frames, 4 * num_cells).softmax(dim=-1),
        deep_attention=normal(num_frames, 4 * num_cells).softmax(dim=-1),
    )


def moved(clip: VisualFeatures, device: torch.device, dtype: torch.dtype) -> VisualFeatures:
    """The clip on a device; tokens, keys and embeddings in a dtype."""
    changed = {}
    for one in fields(clip):
        value = getattr(clip, one.name)
        if isinstance(value, Tensor):
            kept = one.name == "timestamps" or one.name.endswith(("saliency", "attention"))
            changed[one.name] = value.to(device) if kept else value.to(device, dtype)
    return replace(clip, **changed)
