"""The language halves on the simulated device give the replies of the host."""

from __future__ import annotations

import pytest
import torch
from simulated_device import SimulatedDevice
from simulated_halves import CHECKPOINTS, move_weights

from tango_core import load_language_model
from tango_core.compressors import build_method
from tango_core.models.base import ClipPrompts
from tango_core.models.language.engine import NativeEngine
from tango_core.types import CompressedVideo, Prompt

PROMPTS = (Prompt("", "what is it"), Prompt("", "and what is that"))
NEW_TOKENS = 6


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


@pytest.mark.parametrize(
    ("family", "pruner"),
    [
        *((family, None) for family in CHECKPOINTS),
        ("llava-onevision-7b", "pyramiddrop"),
        ("qwen2.5-vl-7b", "pyramiddrop"),
    ],
)
def test_replies_on_the_device_are_those_of_the_host(family, pruner, tmp_path, monkeypatch):
    monkeypatch.setattr(torch.cuda, "synchronize", lambda *device: None)
    path = str(CHECKPOINTS[family](tmp_path))
    here, there = (load_language_model(family, path) for _ in range(2))
    if pruner is not None:
        number = len(here.engine.layer_loop.layers)
        pruner = build_method(pruner, retention=0.7, num_layers=number).pruner
    here.engine.decode_text, here.engine.eos_ids = token_ids, frozenset()
    expected = replies(here, request(here.spec, pruner))
    with SimulatedDevice() as device:
        move_weights(there, device)
        there.engine = NativeEngine(there.engine.model, token_ids, frozenset())
        assert replies(there, request(here.spec, pruner)) == expected
