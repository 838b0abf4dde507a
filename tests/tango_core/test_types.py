"""The central types refuse what does not describe one clip, where it is made."""

import numpy as np
import pytest
import torch

from tango_core import Answer, Question, VideoFrames, VisualFeatures

T, H, W, D = 3, 2, 5, 8


def frames(times, num_frames=2):
    return VideoFrames(np.zeros((num_frames, 4, 4, 3), np.uint8), np.array(times, np.float64))


def features(grid=(H, W), **signals):
    tokens = torch.zeros(T, grid[0] * grid[1], D)
    return VisualFeatures(tokens, grid, torch.arange(T, dtype=torch.float64), **signals)


def answer(**changes):
    values = {"text": "A", "choice": 0, "status": "ok", "prompt_tokens": 1, "new_tokens": 1}
    return Answer(**{**values, "prefill_ms": 1.0, "ttft_ms": 1.0, "decode_ms": 1.0, **changes})


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
    with pytest.raises(ValueError, match="grid must be"):
        features(grid)


@pytest.mark.parametrize("right", [True, 1.0, "B"])
def test_a_right_answer_is_an_index(right):
    with pytest.raises(ValueError, match="answer must be an index or None"):
        Question("q", "What?", ("a", "b"), right)


def test_an_index_from_a_table_is_a_number_like_any_other():
    question = Question("q", "What?", ("a", "b"), np.int64(1))
    assert type(question.answer) is int


def test_options_are_frozen_as_the_question_is():
    assert Question("q", "What?", ["a", "b"], 1).choices == ("a", "b")
    with pytest.raises(ValueError, match="choices must be a tuple"):
        Question("q", "What?", "ab", 1)


@pytest.mark.parametrize(
    ("changes", "message"),
    [({"status": "fine"}, "status must be one of ok, "), ({"choice": -1}, "index of an option")],
)
def test_an_answer_says_what_became_of_it(changes, message):
    with pytest.raises(ValueError, match=message):
        answer(**changes)
    assert answer(choice=None, status="unparsed").status == "unparsed"
