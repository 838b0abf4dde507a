"""The central types refuse what does not describe one clip, where it is made."""

import numpy as np
import pytest
import torch

from tango_core import VideoFrames, VisualFeatures

T, H, W, D = 3, 2, 5, 8


def frames(times, num_frames=2):
    return VideoFrames(np.zeros((num_frames, 4, 4, 3), np.uint8), np.array(times, np.float64))


def features(grid=(H, W), **signals):
    tokens = torch.zeros(T, grid[0] * grid[1], D)
    return VisualFeatures(tokens, grid, torch.arange(T, dtype=torch.float64), **signals)


@pytest.mark.parametrize(
    ("times", "num_frames", "message"),
    [
        ([0.0, np.nan], 2, "finite"),
        ([0.0, np.inf], 2, "finite"),
        ([], 0, "at least one frame"),
    ],
)
def test_every_frame_has_a_time(times, num_frames, message):
    with pytest.raises(ValueError, match=message):
        frames(times, num_frames)


@pytest.mark.parametrize(
    ("name", "shape", "expected"),
    [
        ("saliency", (T, H * W, 1), r"\(3, 10\)"),
        ("attention", (T, H, W), r"\(3, 10\)"),
        ("keys", (T, H * W), r"\(3, 10, Dk\)"),
        ("frame_embeddings", (T,), r"\(3, Dv\)"),
        ("frame_embeddings", (T + 1, D), r"\(3, Dv\)"),
    ],
)
def test_a_signal_of_another_shape_is_refused(name, shape, expected):
    with pytest.raises(ValueError, match=rf"{name} must be {expected}"):
        features(**{name: torch.zeros(shape)})


@pytest.mark.parametrize("grid", [(0, 5), (-2, -5)])
def test_a_grid_has_tokens(grid):
    with pytest.raises(ValueError, match=r"tokens must be .* on grid"):
        features(grid)
