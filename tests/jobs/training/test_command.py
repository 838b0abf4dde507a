"""A whole training of a few steps: model, card, evaluations, MLflow."""

from __future__ import annotations

import io
import logging
from pathlib import Path

import numpy as np
import pytest
import torch
from rich.console import Console
from short_training import SHORT, one_thread, training

from jobs.training.card import card_text
from jobs.training.command import show_progress, train_tiny
from jobs.training.held_out import read_evaluations
from jobs.training.projector import patch_states, pooled
from jobs.training.recipe import FULL
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
    evaluation = train_tiny(output, recipe=SHORT, clips=2)
    return output, evaluation


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
    assert (output / "mlflow.db").is_file()
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


def test_curves_and_accuracy_are_in_mlflow(model):
    from mlflow import MlflowClient

    output, evaluation = model
    client = MlflowClient(tracking_uri=f"sqlite:///{output / 'mlflow.db'}")
    experiment = client.get_experiment_by_name("tango-train-tiny")
    (run,) = client.search_runs([experiment.experiment_id])
    assert run.data.metrics["accuracy"] == pytest.approx(evaluation.overall.value)
    assert [one.step for one in client.get_metric_history(run.info.run_id, "drawn/loss")] == [2, 4]
    assert run.data.params["seed"] == "0"


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


@pytest.mark.parametrize("terminal", [True, False])
def test_a_terminal_gets_bars_and_a_log_gets_lines(terminal, caplog):
    out = io.StringIO()
    console = Console(file=out, width=120, force_terminal=terminal)
    with caplog.at_level(logging.INFO), show_progress(console) as report:
        report("vision", 1, 3, {"loss": 2.0, "loss/kind": 1.0})
        report("vision", 2, 3, {"loss": 1.5, "loss/kind": 0.7})
        report("vision", 3, 3, {"loss": 1.25, "loss/kind": 0.5})
    lines = [record.getMessage() for record in caplog.records]
    if terminal:
        assert not lines
        assert "3/3" in out.getvalue()
        assert "loss 1.25" in out.getvalue()
    else:
        assert out.getvalue() == ""
        assert lines == [
            "vision: step 1 of 3, loss 2.00",
            "vision: step 3 of 3, loss 1.25",
        ]
