"""Host memory that is used again for the next clip is not what a copy to a GPU still reads."""

from __future__ import annotations

import numpy as np
import torch
from simulated_device import SimulatedDevice

from pipeline.cache.features import open_features
from pipeline.cache.sealed_rows import ClipIdentity
from tango_core.compressors.contract.clips import make_clip
from tango_core.models.towers.frame_batches import upload_clip

MODEL = {"name": "tiny", "frames": {"num_frames": 4}}


def test_stored_features_of_one_clip_after_the_other(tmp_path):
    cache = open_features(str(tmp_path), MODEL)
    clips = {key: make_clip(4, (3, 3), seed=seed) for seed, key in enumerate(("one", "two"))}
    for key, clip in clips.items():
        cache.write(ClipIdentity(key, key, None, ""), clip, (), (0.0, 0.0))
    with SimulatedDevice() as device:
        found = {key: cache.opened(key).features(frozenset(), "cuda") for key in clips}
        again = cache.opened("one").tokens()[0]
    for key, clip in clips.items():
        assert torch.equal(found[key].tokens.held, clip.tokens)
    assert torch.equal(again, clips["one"].tokens)
    assert device.reads == 0


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
