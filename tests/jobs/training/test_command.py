"""A complete training with few steps; lengths of stages, and resuming one."""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np
import pytest
import torch

from jobs.training.command import FULL, MINUTES, Recipe, Stage, Training, recipe_for, train_tiny
from jobs.training.model import patch_states, pooled
from tango_core.benchmarks.shapes.render import render
from tango_core.benchmarks.shapes.world import clip_at, sample_moments
from tango_core.models import describe_model, load_encoder
from tango_core.types import VideoFrames

SHORT = Recipe(
    (
        *(Stage(name, 1, 1e-3, warmup=1, every=1) for name in ("vision", "digits", "again")),
        Stage("drawn", 4, 1e-3, warmup=1, every=2),
        Stage("seen", 2, 1e-3, warmup=1, every=1),
    ),
    fit_frames=40,
)


def training(directory: Path) -> Training:
    """The short training with seed 0 and its files in `directory`."""
    return Training(SHORT, 0, directory)


@pytest.fixture(autouse=True)
def one_thread():
    """Torch with one thread, as `train_tiny` sets it."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture(scope="module")
def output(tmp_path_factory):
    """The directory of a training of a few steps."""
    output = tmp_path_factory.mktemp("model")
    train_tiny(output, recipe=SHORT)
    return output


def test_training_writes_a_checkpoint(output):
    assert {"saliency", "frame_embeddings"} <= describe_model("tiny", str(output)).provides


def test_the_model_card_states_the_full_recipe():
    card = (Path(describe_model("tiny").path) / "README.md").read_text()
    for stage in FULL.stages:
        assert re.search(rf"\| {stage.name} \|.*\| {stage.steps} \| {stage.rate:g} \|", card)


def test_a_training_is_only_resumed_with_the_same_options(output):
    with pytest.raises(ValueError, match="--resume"):
        train_tiny(output, recipe=SHORT)
    with pytest.raises(ValueError, match="seed"):
        train_tiny(output, recipe=SHORT, seed=1, resume=True)


def test_the_saved_model_reproduces_the_trained_tokens(output):
    finished = training(output / "training")
    vision = finished.vision()
    projector = finished.joint(vision, finished.language())
    clip = clip_at("validation", 0, 0)
    frames = render(clip, sample_moments(16, 4))
    encoder = load_encoder(describe_model("tiny", str(output), num_frames=4))
    features = encoder.encode(VideoFrames(frames, np.arange(4) * 2.0), frozenset())
    with torch.no_grad():
        states = patch_states(vision, torch.from_numpy(frames))
        expected = pooled(projector(states))
    tokens = features.tokens.flatten(0, -2)
    torch.testing.assert_close(tokens, expected.flatten(0, 1), atol=0.02, rtol=0.02)


def test_less_time_shortens_all_stages():
    half = recipe_for(MINUTES / 2)
    assert [one.steps for one in half.stages] == [one.steps // 2 for one in FULL.stages]
    assert recipe_for(10 * MINUTES) == FULL
    with pytest.raises(ValueError, match="--minutes"):
        recipe_for(0)


class StoppedError(Exception):
    """Stands for a job that is killed."""


def test_a_resumed_stage_gives_the_same_weights(tmp_path, monkeypatch):
    (tmp_path / "whole").mkdir()
    (tmp_path / "parts").mkdir()
    whole = training(tmp_path / "whole").language()

    def stop(*args):
        raise StoppedError

    with monkeypatch.context() as patch:
        patch.setattr("jobs.training.command.logger.info", stop)  # after the first checkpoint
        with pytest.raises(StoppedError):
            training(tmp_path / "parts").language()
    parts = training(tmp_path / "parts").language()
    for name, value in whole.state_dict().items():
        torch.testing.assert_close(parts.state_dict()[name], value, msg=name)
