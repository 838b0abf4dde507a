"""Stages: lengths, learning rates, and resuming; the vision tower at the start of its training."""

from __future__ import annotations

import pytest
import torch
from short_training import one_thread, training

from jobs.training.stages import FULL, MINUTES, recipe_for


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
