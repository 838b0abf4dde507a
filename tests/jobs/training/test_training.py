"""The recipe in miniature: real stages of a few steps."""

import json

import numpy as np
import pytest
import torch

from jobs.training.command import train_tiny
from jobs.training.course import train_drawn, train_seen, train_vision
from jobs.training.frames import frame_batch, labelled_frame
from jobs.training.projector import patch_states, pooled
from jobs.training.recipe import FULL, MINUTES, Recipe, architecture, recipe_for
from jobs.training.stage import Stage, rate_at
from jobs.training.trial import read_trials
from jobs.training.vision import VisionTrainer
from tango_core.benchmarks.shapes.benchmark import clip_at, render, sample_moments
from tango_core.models import describe_model, load_encoder
from tango_core.types import VideoFrames

SHORT = Recipe(
    Stage("vision", 1, 1e-3, warmup=1, every=1),
    Stage("digits", 1, 1e-3, warmup=1, every=1),
    Stage("again", 1, 1e-3, warmup=1, every=1),
    Stage("drawn", 4, 1e-3, warmup=1, every=2),
    Stage("seen", 2, 1e-3, warmup=1, every=1),
    fit_frames=40,
)


class StoppedError(Exception):
    """Stands for a job that is killed."""


def ignore(stage, step, steps, figures):
    """Show nothing."""


@pytest.fixture(autouse=True)
def _one_thread():
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    """A whole training of a few steps."""
    output = tmp_path_factory.mktemp("model")
    trial = train_tiny(output, recipe=SHORT, clips=2)
    return output, trial


def test_heads_of_the_first_block_look_at_their_neighbours():
    torch.manual_seed(0)
    trainer = VisionTrainer(architecture().vision_config)
    pixels = torch.from_numpy(np.stack([labelled_frame(0, index)[0] for index in range(4)]))
    block = trainer.tower.encoder.layers[0]
    with torch.no_grad():
        states = block.layer_norm1(
            trainer.tower.embeddings(pixels.permute(0, 3, 1, 2).float() / 127.5 - 1)
        )
        queries, keys = (
            projection(states).view(4, 256, 8, 16).transpose(1, 2)
            for projection in (block.self_attn.q_proj, block.self_attn.k_proj)
        )
    seen = (queries @ keys.mT * block.self_attn.scale).softmax(-1)[:, :, 8 * 16 + 8].mean(0)
    up, down, left, right = seen[:4].argmax(-1).tolist()
    assert (up, down, left, right) == (7 * 16 + 8, 9 * 16 + 8, 8 * 16 + 7, 8 * 16 + 9)


def test_the_tower_learns_from_labelled_frames():
    torch.manual_seed(0)
    trainer = VisionTrainer(architecture().vision_config)
    batch = frame_batch([labelled_frame(0, index) for index in range(6)])
    optimizer = torch.optim.AdamW(trainer.parameters(), lr=1e-3)
    losses = []
    for _ in range(8):
        loss, _ = trainer.loss(batch)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    assert losses[-1] < 0.8 * losses[0]


def test_an_interrupted_stage_ends_where_an_uninterrupted_one_does(tmp_path):
    config = architecture()
    (tmp_path / "whole").mkdir()
    (tmp_path / "parts").mkdir()
    whole = train_drawn(config, SHORT, 0, tmp_path / "whole", ignore)

    def stop(stage, step, steps, figures):
        raise StoppedError

    with pytest.raises(StoppedError):
        train_drawn(config, SHORT, 0, tmp_path / "parts", stop)
    with (tmp_path / "parts" / "drawn.jsonl").open("a") as log:
        log.write('{"step": 4, "loss": 0.0}\n')
    parts = train_drawn(config, SHORT, 0, tmp_path / "parts", ignore)
    for name, value in whole.state_dict().items():
        torch.testing.assert_close(parts.state_dict()[name], value, msg=name)
    steps = [
        json.loads(line)["step"]
        for line in (tmp_path / "parts" / "drawn.jsonl").read_text().splitlines()
    ]
    assert steps == [2, 4]


def test_a_training_leaves_a_model_a_card_and_its_figures(model):
    output, trial = model
    spec = describe_model("tiny", str(output))
    assert spec.note == ""
    assert {"saliency", "frame_embeddings"} <= spec.provides
    card = (output / "README.md").read_text()
    assert f"{100 * trial.overall.value:.1f} %" in card
    assert f"| {trial.overall.num_questions} | 2 |" in card
    for kind in trial.by_type:
        assert f"`{kind}`" in card
    assert (output / "mlflow.db").is_file()
    assert 0 < trial.object_share < 1
    assert 0 < trial.saliency_share < 1


@pytest.mark.slow
def test_the_card_shows_trainings_with_other_seeds_of_the_same_recipe(model, tmp_path):
    output, trial = model
    other = tmp_path / "other"
    own = train_tiny(other, recipe=SHORT, seed=1, clips=2, beside=[output])
    rows = (other / "README.md").read_text().splitlines()
    found = {row.split(" | ")[0]: row.split(" | ")[1] for row in rows if row.startswith("| ")}
    assert found["| 1"] == f"{100 * own.overall.value:.1f}"
    assert found["| 0"] == f"{100 * trial.overall.value:.1f}"
    with pytest.raises(ValueError, match="another recipe"):
        train_tiny(tmp_path / "full", beside=[output])
    with pytest.raises(FileNotFoundError, match="no finished training"):
        train_tiny(tmp_path / "full", recipe=SHORT, beside=[tmp_path])
    assert not (tmp_path / "full").exists()


def test_what_was_found_is_read_back_as_it_was(model):
    output, trial = model
    trials = read_trials(output / "training" / "trials.json")
    assert trials[0] == trial
    assert [(one.seed, one.num_frames) for one in trials] == [(0, 8), (0, 16), (1, 8)]


def test_curves_and_accuracy_are_in_mlflow(model):
    from mlflow import MlflowClient

    output, trial = model
    client = MlflowClient(tracking_uri=f"sqlite:///{output / 'mlflow.db'}")
    experiment = client.get_experiment_by_name("tango-train-tiny")
    (run,) = client.search_runs([experiment.experiment_id])
    assert run.data.metrics["accuracy"] == pytest.approx(trial.overall.value)
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
    config, stages = architecture(), output / "training"
    vision = train_vision(config, SHORT, 0, stages, ignore)
    decoder = train_drawn(config, SHORT, 0, stages, ignore)
    seen = train_seen(config, SHORT, vision, decoder, 0, stages, ignore)
    clip = clip_at("validation", 0, 0)
    frames = render(clip, sample_moments(16, 4))
    encoder = load_encoder(describe_model("tiny", str(output), num_frames=4))
    features = encoder.encode(VideoFrames(frames, np.arange(4) * 2.0), frozenset())
    with torch.no_grad():
        states = patch_states(vision, torch.from_numpy(frames))
        expected = pooled(seen.projector(states))
    tokens = features.tokens.flatten(0, -2)
    torch.testing.assert_close(tokens, expected.flatten(0, 1), atol=0.02, rtol=0.02)


def test_less_time_shortens_every_stage():
    half = recipe_for(MINUTES / 2)
    assert half.drawn.steps == round(FULL.drawn.steps / 2)
    assert recipe_for(10 * MINUTES) == FULL
    with pytest.raises(ValueError, match="--minutes"):
        recipe_for(0)


def test_rates_warm_up_and_fall():
    stage = Stage("any", 100, 1.0, warmup=10)
    rates = [rate_at(stage, step) for step in range(100)]
    assert rates[0] == pytest.approx(0.1)
    assert max(rates) == pytest.approx(1.0)
    assert rates[-1] == pytest.approx(0.03, abs=0.01)
