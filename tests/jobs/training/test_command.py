"""A whole training of a few steps: model, card, evaluations."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from short_training import SHORT, one_thread, training

from jobs.training.card import card_text, read_evaluations
from jobs.training.command import train_tiny
from jobs.training.model import patch_states, pooled
from jobs.training.stages import FULL
from tango_core.benchmarks.shapes.render import render
from tango_core.benchmarks.shapes.world import clip_at, sample_moments
from tango_core.models import describe_model, load_encoder
from tango_core.types import VideoFrames


@pytest.fixture(autouse=True)
def _one_thread():
    with one_thread():
        yield


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    """A whole training of a few steps."""
    output = tmp_path_factory.mktemp("model")
    return output, train_tiny(output, recipe=SHORT, clips=2)


def test_a_training_leaves_a_model_a_card_and_its_figures(model):
    output, evaluation = model
    spec = describe_model("tiny", str(output))
    assert spec.note == ""
    assert {"saliency", "frame_embeddings"} <= spec.provides
    card = (output / "README.md").read_text()
    assert f"{100 * evaluation.overall.value:.1f} %" in card
    assert f"| {evaluation.overall.num_questions} | 2 |" in card
    for kind in evaluation.by_type:
        assert f"`{kind}`" in card
    assert 0 < evaluation.object_share < 1
    assert 0 < evaluation.saliency_share < 1


@pytest.mark.slow
def test_the_card_shows_trainings_with_other_seeds_of_the_same_recipe(model, tmp_path):
    output, evaluation = model
    other = tmp_path / "other"
    own = train_tiny(other, recipe=SHORT, seed=1, clips=2, beside=[output])
    rows = (other / "README.md").read_text().splitlines()
    found = {row.split(" | ")[0]: row.split(" | ")[1] for row in rows if row.startswith("| ")}
    assert found["| 1"] == f"{100 * own.overall.value:.1f}"
    assert found["| 0"] == f"{100 * evaluation.overall.value:.1f}"
    with pytest.raises(ValueError, match="another recipe"):
        train_tiny(tmp_path / "full", beside=[output])
    with pytest.raises(FileNotFoundError, match="no finished training"):
        train_tiny(tmp_path / "full", recipe=SHORT, beside=[tmp_path])
    assert not (tmp_path / "full").exists()


def test_the_shipped_card_has_the_text_that_is_generated():
    card = (Path(describe_model("tiny").path) / "README.md").read_text()
    before, between, after = card_text(0, FULL, "<cut>", "<cut>").split("<cut>")
    assert card.startswith(before)
    assert card.endswith(after)
    assert not between.strip()


def test_evaluations_are_read_back_as_they_were(model):
    output, evaluation = model
    evaluations = read_evaluations(output / "training" / "trials.json")
    assert evaluations[0] == evaluation
    assert [(one.seed, one.num_frames) for one in evaluations] == [(0, 8), (0, 16), (1, 8)]


def test_a_training_is_not_overwritten_and_not_continued_with_other_options(model):
    output, _ = model
    with pytest.raises(ValueError, match="--resume"):
        train_tiny(output, recipe=SHORT)
    with pytest.raises(ValueError, match="seed"):
        train_tiny(output, recipe=SHORT, seed=1, resume=True)


def test_the_saved_model_makes_the_tokens_that_were_trained_with(model):
    output, _ = model
    finished = training(output / "training")
    vision = finished.vision()
    joint = finished.joint(vision, finished.language())
    clip = clip_at("validation", 0, 0)
    frames = render(clip, sample_moments(16, 4))
    encoder = load_encoder(describe_model("tiny", str(output), num_frames=4))
    features = encoder.encode(VideoFrames(frames, np.arange(4) * 2.0), frozenset())
    with torch.no_grad():
        states = patch_states(vision, torch.from_numpy(frames))
        expected = pooled(joint.projector(states))
    tokens = features.tokens.flatten(0, -2)
    torch.testing.assert_close(tokens, expected.flatten(0, 1), atol=0.02, rtol=0.02)
