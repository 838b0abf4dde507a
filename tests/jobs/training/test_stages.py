"""Stages: lengths, learning rates, and resuming; the vision tower at the start of its training."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from short_training import one_thread, training

from jobs.training.data import labelled_frame
from jobs.training.model import VisionTrainer
from jobs.training.stages import FULL, MINUTES, architecture, recipe_for


def test_less_time_shortens_all_stages():
    half = recipe_for(MINUTES / 2)
    assert [one.steps for one in half.stages] == [one.steps // 2 for one in FULL.stages]
    assert recipe_for(10 * MINUTES) == FULL
    with pytest.raises(ValueError, match="--minutes"):
        recipe_for(0)


class StoppedError(Exception):
    """Stands for a job that is killed."""


@pytest.fixture(autouse=True)
def _one_thread():
    with one_thread():
        yield


def test_a_resumed_stage_gives_the_same_weights(tmp_path, monkeypatch):
    (tmp_path / "whole").mkdir()
    (tmp_path / "parts").mkdir()
    whole = training(tmp_path / "whole").language()

    def stop(*args):
        raise StoppedError

    with monkeypatch.context() as patch:
        patch.setattr("jobs.training.stages.logger.info", stop)  # after the first checkpoint
        with pytest.raises(StoppedError):
            training(tmp_path / "parts").language()
    parts = training(tmp_path / "parts").language()
    for name, value in whole.state_dict().items():
        torch.testing.assert_close(parts.state_dict()[name], value, msg=name)


def test_heads_of_the_first_block_attend_to_their_neighbours():
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
    attention = (queries @ keys.mT * block.self_attn.scale).softmax(-1)[:, :, 8 * 16 + 8].mean(0)
    up, down, left, right = attention[:4].argmax(-1).tolist()
    assert (up, down, left, right) == (7 * 16 + 8, 9 * 16 + 8, 8 * 16 + 7, 8 * 16 + 9)
