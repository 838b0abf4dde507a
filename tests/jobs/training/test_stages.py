"""Stages that are stopped and resumed."""

from __future__ import annotations

import json

import pytest
import torch
from short_training import one_thread, training


class StoppedError(Exception):
    """Stands for a job that is killed."""


@pytest.fixture(autouse=True)
def _one_thread():
    with one_thread():
        yield


def test_an_interrupted_stage_ends_where_an_uninterrupted_one_does(tmp_path):
    (tmp_path / "whole").mkdir()
    (tmp_path / "parts").mkdir()
    whole = training(tmp_path / "whole").language()

    def stop(stage, step, steps, metrics):
        raise StoppedError

    with pytest.raises(StoppedError):
        training(tmp_path / "parts", stop).language()
    with (tmp_path / "parts" / "drawn.jsonl").open("a") as log:
        log.write('{"step": 4, "loss": 0.0}\n')
    parts = training(tmp_path / "parts").language()
    for name, value in whole.state_dict().items():
        torch.testing.assert_close(parts.state_dict()[name], value, msg=name)
    steps = [
        json.loads(line)["step"]
        for line in (tmp_path / "parts" / "drawn.jsonl").read_text().splitlines()
    ]
    assert steps == [2, 4]
