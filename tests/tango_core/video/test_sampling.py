import json
import math
import re
from itertools import product

import numpy as np
import pytest
import torch
from golden_files import GOLDEN_DIR
from transformers.models.qwen2_vl.image_processing_pil_qwen2_vl import smart_resize

from tango_core.video.sampling import (
    SAMPLINGS,
    clip_window,
    fit_size,
    frame_indices,
    numbered_window,
)

GOLDEN = GOLDEN_DIR / "frames" / "frame_indices.json"
TIMES = np.arange(10) / 4  # 0.00, 0.25, ... 2.25


PUBLISHED = {
    "llava_ov_32": (32, "truncate"),
    "llava_video_64": (64, "truncate"),
    "qwen_32": (32, "round"),
    "lmms_qwen_simple": (32, "thinned"),
    "vlm_frames_8": (8, "inner"),
    "mvbench_mp4_frames_8": (8, "middles"),
}


def golden_cases():
    """(case, frames of the file, their rate, key -> indices) of every golden file."""
    for case, published in json.loads(GOLDEN.read_text()).items():
        available, rate = re.fullmatch(r"n=(\d+),fps=([\d.]+)", case).groups()
        yield case, int(available), float(rate), published


@pytest.mark.parametrize("key", PUBLISHED)
def test_indices_equal_those_of_the_published_pipelines(key):
    num_frames, sampling = PUBLISHED[key]
    for case, available, rate, published in golden_cases():
        indices = frame_indices(available, num_frames, sampling, rate)
        assert indices.tolist() == published[key], case


@pytest.mark.parametrize("num_frames", [2, 8, 31, 32, 64, 768])
def test_round_equals_torch_linspace_for_any_length(num_frames):
    even = round(num_frames / 2) * 2
    for available in [*range(even, even + 400), 1001, 29_971, 107_892, 1_000_003]:
        expected = torch.linspace(0, available - 1, even).round().long().tolist()
        assert frame_indices(available, num_frames, "round").tolist() == expected, available


@pytest.mark.parametrize("rate", [0.3, 2.0, 10.0, 23.976, 29.97, 30.0, 59.94])
def test_thinned_is_two_frames_per_second_and_then_truncate(rate):
    """What lmms-eval's Qwen2.5-VL does to the frames that qwen-vl-utils hands it."""
    for available, num_frames in product([*range(2, 400), 9_999, 107_892], [1, 7, 20, 32, 768]):
        count = min(max(available / rate * 2.0, 4), 768 // 2 * 2, available)
        read = torch.linspace(0, available - 1, int(count // 2 * 2)).round().long().numpy()
        kept = np.unique([*np.linspace(0, len(read) - 1, num_frames, dtype=int), len(read) - 1])
        indices = frame_indices(available, num_frames, "thinned", rate)
        assert indices.tolist() == read[kept].tolist(), (available, num_frames)


@pytest.mark.parametrize("sampling", SAMPLINGS)
def test_every_rule_stays_inside_the_clip(sampling):
    for available, num_frames in [(1, 1), (1, 32), (2, 32), (50, 1), (50, 50)]:
        indices = frame_indices(available, num_frames, sampling, rate=3.0)
        assert 1 <= len(indices) <= max(2, num_frames)
        assert indices.dtype == np.int64
        assert (np.diff(indices) >= 0).all()
        assert 0 <= indices[0] <= indices[-1] < available


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
    ("numbered_from", "start", "end", "first", "last"),
    [
        (1, 0.0, math.inf, 1, 30),
        (1, 0.0, 1.0, 1, 3),
        (1, 2.0, 400.0, 6, 30),
        (1, 0.1, 0.1, 1, 1),
        (1, 9.9, 10.0, 30, 30),
        (0, 0.0, math.inf, 0, 29),
        (0, 2.1, 4.2, 6, 13),
        (0, 2.2, 2.2, 7, 7),
        (0, 9.9, 10.0, 29, 29),
    ],
)
def test_bounds_may_be_numbers_of_frames(numbered_from, start, end, first, last):
    """MVBench: max(first, round(start * fps)) to min(round(end * fps), last), both included."""
    found = numbered_window(30, start, end, rate=3.0, first=numbered_from)
    assert found == (first - numbered_from, last - numbered_from + 1)


def test_fitted_size_equals_qwens_smart_resize():
    generator = np.random.default_rng(0)
    for height, width in generator.integers(20, 2200, (500, 2)).tolist():
        if max(height, width) / min(height, width) > 200:
            continue
        expected = smart_resize(height, width, 28, min_pixels=100_352, max_pixels=200_704)
        assert fit_size(height, width, 100_352, 200_704, 28) == expected, (height, width)


@pytest.mark.parametrize(
    ("available", "count"), [(1, 2), (2, 2), (3, 2), (7, 6), (31, 30), (32, 32)]
)
def test_round_gives_an_even_number_of_frames_of_a_short_clip(available, count):
    indices = frame_indices(available, 32, "round")
    assert len(indices) == count
    assert indices[0] == 0
    assert indices[-1] == available - 1
