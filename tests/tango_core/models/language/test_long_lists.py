"""Clips with more questions than one batch holds."""

from __future__ import annotations

import pytest
import torch
from batched_requests import run

from tango_core.models.base import ClipPrompts
from tango_core.models.language import batching
from tango_core.models.language.batching import MAX_BATCH
from tango_core.models.language.packed_pass import visual_spans
from tango_core.types import CompressedVideo, Prompt

WORDS = ("cross", "circle", "square", "triangle", "star", "ring")
PLACES = ("left", "right", "before", "after")


@pytest.fixture
def clip():
    generator = torch.Generator().manual_seed(3)
    kept = torch.randperm(512, generator=generator)[:60].sort().values
    tokens = torch.randn(60, 128, generator=generator)
    return CompressedVideo(tokens, kept, (8, 8, 8), torch.arange(8, dtype=torch.float64))


def questions(number):
    pairs = [(word, place) for place in PLACES for word in WORDS][:number]
    return [Prompt("", f"what color is the {word} {place}") for word, place in pairs]


@pytest.mark.parametrize("number", [MAX_BATCH, MAX_BATCH + 1, 24])
@pytest.mark.parametrize("batch_tokens", [1, 4000])
def test_a_clip_is_prefilled_once_however_many_its_questions(
    tiny, clip, monkeypatch, number, batch_tokens
):
    asked = questions(number)
    alone = tiny.answer(clip, asked, max_new_tokens=6, share_prefix=False)
    run_segments, visual = batching.run_segments, []

    def watched(loop, segments, **options):
        visual.extend(len(visual_spans(one.spans)) for one in segments)
        return run_segments(loop, segments, **options)

    monkeypatch.setattr(batching, "run_segments", watched)
    (answers,) = run(tiny, [ClipPrompts(clip, asked, max_new_tokens=6)], batch_tokens)
    assert [one.text for one in answers] == [one.text for one in alone]
    assert sum(visual) == 1


def test_a_lack_of_memory_never_makes_batches_larger(tiny, clip, monkeypatch):
    run_segments, made = batching.run_segments, []

    def too_large(loop, segments, **options):
        made.append(len(segments))
        if len(segments) > 1:
            raise torch.OutOfMemoryError("CUDA out of memory")
        return run_segments(loop, segments, **options)

    monkeypatch.setattr(batching, "run_segments", too_large)
    session = tiny.session(1)
    session.add(ClipPrompts(clip, questions(4), max_new_tokens=2))
    while session.busy:
        session.step()
        assert session._session._budget == 1
    assert made[0] == 5  # the clip, and four questions
