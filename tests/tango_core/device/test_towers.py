"""The vision halves on the simulated device: one transfer per clip, and nobody waits."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch
from simulated_device import SimulatedDevice, describe
from simulated_halves import CHECKPOINTS, move_encoder

from tango_core import describe_model, load_encoder
from tango_core.types import VideoFrames


@pytest.mark.parametrize("family", CHECKPOINTS)
def test_a_clip_is_one_upload_and_its_features_are_those_of_the_cpu(family, tmp_path):
    spec = describe_model(family, str(CHECKPOINTS[family](tmp_path)))
    spec = replace(spec, frames=replace(spec.frames, num_frames=4))
    pixels = np.random.default_rng(0).integers(
        0, 256, (4, *(spec.frames.size or (32, 48)), 3), dtype=np.uint8
    )
    frames, needs = VideoFrames(pixels, np.arange(4.0)), frozenset(spec.provides)
    here, there = load_encoder(spec), load_encoder(spec)
    expected = here.encode(frames, needs)
    with SimulatedDevice() as device:
        move_encoder(there, device)
        there.encode(frames, needs)  # what is remembered of a shape is uploaded once
        device.forget()
        found = there.encode(frames, needs)
        assert device.reads == 0, describe(device.where("read").items())
        assert device.uploads == 1, describe(device.where("upload").items())
        assert not device.varying, describe(device.where("varying").items())
    deep = ("companions",) if spec.companions else ()
    for name in ("tokens", "timestamps", *deep, *needs):
        torch.testing.assert_close(getattr(found, name).held, getattr(expected, name))
