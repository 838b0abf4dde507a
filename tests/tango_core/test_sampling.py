import json
import math
from pathlib import Path

import numpy as np
import pytest
import torch
from transformers.models.qwen2_vl.image_processing_pil_qwen2_vl import smart_resize

from tango_core.sampling import clip_window, fit_size, folder_window, frame_indices

GOLDEN = Path(__file__).parents[1] / "fixtures" / "golden" / "frames" / "frame_indices.json"
TIMES = np.arange(10) / 4  # 0.00, 0.25, ... 2.25


@pytest.mark.parametrize(
    ("key", "num_frames", "sampling"),
    [("llava_ov_32", 32, "truncate"), ("llava_video_64", 64, "truncate"), ("qwen_32", 32, "round")],
)
def test_indices_equal_those_of_the_published_pipelines(key, num_frames, sampling):
    golden = json.loads(GOLDEN.read_text())
    for case, indices in golden.items():
        available = int(case.split(",")[0].removeprefix("n="))
        assert frame_indices(available, num_frames, sampling).tolist() == indices[key], case


@pytest.mark.parametrize("num_frames", [2, 8, 31, 32, 64, 768])
def test_round_equals_torch_linspace_for_any_length(num_frames):
    even = round(num_frames / 2) * 2
    for available in [*range(even, even + 400), 1001, 29_971, 107_892, 1_000_003]:
        expected = torch.linspace(0, available - 1, even).round().long().tolist()
        assert frame_indices(available, num_frames, "round").tolist() == expected, available


def test_truncate_repeats_frames_of_a_clip_that_is_too_short():
    assert frame_indices(3, 8, "truncate").tolist() == [0, 0, 0, 0, 1, 1, 1, 2]


@pytest.mark.parametrize(
    ("available", "count"), [(1, 2), (2, 2), (3, 2), (7, 6), (31, 30), (32, 32)]
)
def test_round_gives_an_even_number_of_frames_of_a_short_clip(available, count):
    indices = frame_indices(available, 32, "round")
    assert len(indices) == count
    assert indices[0] == 0
    assert indices[-1] == available - 1


@pytest.mark.parametrize(
    ("start", "end", "expected"),
    [
        (0.0, math.inf, range(10)),
        (0.25, 0.75, [1, 2, 3]),
        (0.26, 0.74, [2]),
        (0.25 + 1e-9, 0.75 - 1e-9, [1, 2, 3]),
        (0.30, 0.40, [1]),
        (0.40, 0.45, [2]),
        (0.60, 0.60, [2]),
        (0.50, 0.50, [2]),
        (0.375, 0.375, [1]),
        (2.3, 2.4, [9]),
        (2.3, math.inf, [9]),
    ],
)
def test_a_clip_is_the_frames_between_its_bounds_or_the_nearest_one(start, end, expected):
    assert list(range(*clip_window(TIMES, start, end))) == list(expected)


@pytest.mark.parametrize(
    ("start", "end", "first", "last"),
    [
        (0.0, math.inf, 1, 30),
        (0.0, 1.0, 1, 3),
        (2.0, 4.0, 6, 12),
        (2.0, 400.0, 6, 30),
        (0.1, 0.1, 1, 1),
        (2.2, 2.2, 7, 7),
        (9.9, 10.0, 30, 30),
    ],
)
def test_bounds_of_a_frame_folder_are_image_numbers(start, end, first, last):
    """MVBench: max(1, round(start * fps)) to min(round(end * fps), n), counted from 1."""
    assert folder_window(30, start, end, fps=3.0) == (first - 1, last)


def test_fitted_size_equals_qwens_smart_resize():
    generator = np.random.default_rng(0)
    for height, width in generator.integers(20, 2200, (500, 2)).tolist():
        if max(height, width) / min(height, width) > 200:
            continue
        expected = smart_resize(height, width, 28, min_pixels=100_352, max_pixels=200_704)
        assert fit_size(height, width, 100_352, 200_704, 28) == expected, (height, width)


def test_the_papers_qwen_setting_on_360p():
    assert fit_size(360, 640, 100_352, 448 * 448, 28) == (336, 588)


def test_a_ribbon_is_refused():
    with pytest.raises(ValueError, match="4000x10 are too narrow"):
        fit_size(10, 4000, 1, 10**9, 28)
