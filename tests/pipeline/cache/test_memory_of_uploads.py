"""Host memory that is used again for the next clip is not what a copy to a GPU still reads."""

from __future__ import annotations

import numpy as np
import torch
from simulated_device import SimulatedDevice

from tango_core.models.towers.encoder import upload_clip

MODEL = {"name": "tiny", "frames": {"num_frames": 4}}


def test_frames_of_one_clip_after_the_other(monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    clips = [np.full((2, 4, 4, 3), value, np.uint8) for value in (1, 2)]
    with SimulatedDevice():
        found = [upload_clip(clip, np.arange(2.0), torch.device("cuda")) for clip in clips]
        for clip in clips:
            clip[:] = 9  # the decoder goes on
    for value, (pixels, times) in enumerate(found, start=1):
        assert (pixels.held == value).all()
        assert times.held.tolist() == [0.0, 1.0]
