"""The language halves on the simulated device: same replies, and steps that can be recorded."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
import torch
from simulated_device import SimulatedDevice, describe
from simulated_halves import CHECKPOINTS, move_weights

from tango_core import load_language_model
from tango_core.compressors import build_method
from tango_core.models.base import ClipPrompts
from tango_core.models.language import decoding
from tango_core.models.language.engine import NativeEngine
from tango_core.types import CompressedVideo, Prompt

PROMPTS = (Prompt("", "what is it"), Prompt("", "and what is that"))
NEW_TOKENS = 13  # eight steps before a recording, and four behind it


def request(spec, pruner=None):
    generator = torch.Generator().manual_seed(0)
    tokens = torch.randn(33, spec.llm.hidden_size, generator=generator)
    companions = None
    if spec.companions:
        companions = torch.randn(33, spec.companions, tokens.shape[1], generator=generator)
    video = CompressedVideo(
        tokens,
        torch.randperm(96, generator=generator)[:33].sort().values,
        (6, 4, 4),
        torch.arange(6, dtype=torch.float64),
        companions=companions,
    )
    return ClipPrompts(video, PROMPTS, pruner=pruner, max_new_tokens=NEW_TOKENS)


def token_ids(ids):
    return " ".join(map(str, ids))


def replies(model, asked):
    """Token ids of all replies, from a session."""
    session, found = model.session(4000), []
    session.add(asked)
    while session.busy:
        for _, answers in session.step():
            assert not isinstance(answers, Exception), answers
            found += [answer.text for answer in answers]
    return found


@pytest.fixture
def on_gpu(monkeypatch):
    """What a process with a GPU would find."""
    monkeypatch.setattr(torch.cuda, "synchronize", lambda *device: None)
    monkeypatch.setattr(decoding, "cuda_is_in_use", lambda: True)


@pytest.mark.parametrize(
    ("family", "pruner"),
    [
        *((family, None) for family in CHECKPOINTS),
        ("llava-onevision-7b", "pyramiddrop"),
        ("qwen2.5-vl-7b", "pyramiddrop"),
    ],
)
def test_a_step_waits_for_nothing_and_uploads_nothing(family, pruner, tmp_path, on_gpu):
    path = str(CHECKPOINTS[family](tmp_path))
    here, there = (load_language_model(family, path) for _ in range(2))
    if pruner is not None:
        number = len(here.engine.layers)
        pruner = build_method(pruner, retention=0.7, num_layers=number).pruner
    here.engine.decode_text, here.engine.eos_ids = token_ids, frozenset()
    expected = replies(here, request(here.spec, pruner))
    recorded = []

    def record(work):
        def replay():
            with device.recording():
                work()

        recorded.append(work)
        return SimpleNamespace(replay=replay)

    with SimulatedDevice() as device:
        move_weights(there, device)
        there.engine = NativeEngine(there.engine.model, token_ids, frozenset())
        there.engine.layer_loop.recorder = SimpleNamespace(record=record)
        found = replies(there, request(here.spec, pruner))
    assert found == expected
    assert len(recorded) == 1
    assert not device.varying, describe(device.where("varying").items())
