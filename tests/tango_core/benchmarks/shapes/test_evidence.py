"""The tokens that show what a question is about: by pixels, and for every type of question."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from tango_core.benchmarks.shapes.benchmark import ShapesBenchmark
from tango_core.benchmarks.shapes.evidence import clip_of, cover_of, sprites_asked, tokens_of
from tango_core.benchmarks.shapes.questions import questions
from tango_core.benchmarks.shapes.render import render
from tango_core.benchmarks.shapes.world import SECONDS_PER_MOMENT, Box, clip_at

CLIPS = [clip_at("test", 0, index) for index in range(60)]


def test_questions_are_about_their_objects():
    for clip in CLIPS:
        for question in questions(clip):
            kind = question.groups["type"]
            asked = [clip.sprites[index] for index in sprites_asked(clip, question)]
            assert bool(asked) == (kind != "order"), question.text
            if kind in ("color", "flash"):
                assert {sprite.color for sprite in asked} == {question.choices[question.answer]}
            elif kind in ("shape", "digit", "object"):
                assert {sprite.name for sprite in asked} == {question.choices[question.answer]}


def test_tokens_are_where_the_object_is_painted():
    """Frames with and without the object differ in its tokens, and nowhere far from its box."""
    clip = next(clip for clip in CLIPS if any(sprite.kind == "plate" for sprite in clip.sprites))
    (plate,) = (n for n, sprite in enumerate(clip.sprites) if sprite.kind == "plate")
    sprite = clip.sprites[plate]
    gone = replace(clip, sprites=tuple(s for n, s in enumerate(clip.sprites) if n != plate))
    for moment in range(sprite.start, sprite.stop):
        frame, without = (render(one, [moment])[0].astype(int) for one in (clip, gone))
        difference = np.abs(frame - without).sum(axis=-1)
        per_token = difference.reshape(8, 16, 8, 16).sum(axis=(1, 3)).ravel()
        (shown,) = tokens_of(clip, [plate], [moment * SECONDS_PER_MOMENT], (8, 8))
        assert shown.any()
        assert per_token[shown].min() > 0
        assert per_token[shown].sum() > 0.6 * per_token.sum()
        box = clip.box(plate, moment)
        wider = Box(plate, box.left - 1, box.top - 1, box.right + 1, box.bottom + 1)
        assert per_token[cover_of(wider, (8, 8)).ravel() == 0].sum() == 0
    assert not tokens_of(clip, [plate], [sprite.stop * SECONDS_PER_MOMENT], (8, 8)).any()


def test_clips_are_found_by_their_ids(tmp_path):
    (item,) = ShapesBenchmark(str(tmp_path), seed=3).items(limit=1)
    assert clip_of(item.video_id) == clip_at("test", 3, 0)
    with pytest.raises(ValueError, match="is no clip of benchmark shapes"):
        clip_of("film")
