"""What the language half does where memory is short outside of its passes."""

from __future__ import annotations

import weakref

import pytest
import torch

from tango_core.models.base import ClipPrompts
from tango_core.models.language import batching
from tango_core.types import CompressedVideo, Prompt


@pytest.fixture
def emptied(monkeypatch):
    """Called whenever the memory of a device is given back."""
    calls = []
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "is_initialized", lambda: True)
    monkeypatch.setattr(torch.cuda, "empty_cache", lambda: [one() for one in calls])
    return calls


def request(tiny):
    tokens = torch.randn(8, tiny.spec.llm.hidden_size)
    times = torch.arange(2, dtype=torch.float64)
    video = CompressedVideo(tokens, torch.arange(8), (2, 2, 2), times)
    return ClipPrompts(video, [Prompt("", "What color?")], max_new_tokens=2)


def answers(session):
    found = []
    while session.busy:
        found += [result for _, result in session.step()]
    return found


def test_a_clip_that_does_not_fit_at_first_is_uploaded_again(tiny, monkeypatch, emptied):
    tries, freed = [], []
    emptied.append(lambda: freed.append(tries[0]() is None))

    def place(tokens):
        large = torch.zeros(1000)
        tries.append(weakref.ref(large))
        if len(tries) == 1:
            raise torch.OutOfMemoryError("CUDA out of memory")
        return tokens

    monkeypatch.setattr(tiny.engine, "place", place)
    session = tiny.session(64)
    session.add(request(tiny))
    ((answer,),) = answers(session)
    assert answer.text is not None
    assert freed == [True], "memory was freed once, when the first try held nothing any more"


def test_memory_is_freed_when_a_failed_batch_is_gone(tiny, monkeypatch, emptied):
    parts, freed = [], []
    emptied.append(lambda: freed.append(parts[0]() is None))
    run_segments = batching.run_segments

    def fails_first(*arguments, **options):
        if not parts:
            layer = torch.zeros(1000)
            parts.append(weakref.ref(layer))
            raise torch.OutOfMemoryError("CUDA out of memory")
        return run_segments(*arguments, **options)

    monkeypatch.setattr(batching, "run_segments", fails_first)
    session = tiny.session(4096)
    session.add(request(tiny))
    session.add(request(tiny))
    results = answers(session)
    assert len(results) == 2
    assert not any(isinstance(one, Exception) for one in results)
    assert freed == [True]


def test_a_clip_that_never_fits_is_an_error_of_its_own(tiny, monkeypatch):
    def place(tokens):
        raise torch.OutOfMemoryError("CUDA out of memory")

    monkeypatch.setattr(tiny.engine, "place", place)
    with pytest.raises(torch.OutOfMemoryError):
        tiny.session(64).add(request(tiny))
