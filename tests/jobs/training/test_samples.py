"""Clips and their questions as token ids."""

from __future__ import annotations

from jobs.training.samples import (
    END_OF_REPLY,
    TYPE_NAMES,
    questions_of,
    tokenize_question,
    training_clip,
    word_id,
)
from tango_core.benchmarks.shapes.questions import questions
from tango_core.benchmarks.shapes.world import clip_at


def test_scenes_are_asked_for_in_single_frames_and_where_there_are_several():
    for num_frames in (1, 2, 4, 8):
        for index in range(12):
            clip, moments = training_clip(0, index, num_frames)
            chosen = {TYPE_NAMES[one.kind] for one in questions_of(clip, moments)}
            several = len({clip.scene_at(moment).kind for moment in moments}) > 1
            assert ("order" in chosen) == (several or num_frames == 1)


def test_two_frames_can_show_two_scenes():
    scenes = [
        {clip.scene_at(moment).kind for moment in moments}
        for clip, moments in (training_clip(0, index, 2) for index in range(20))
    ]
    assert {len(one) for one in scenes} == {1, 2}


def test_the_scene_of_a_single_frame_is_asked_for():
    clip, moments = training_clip(0, 0, 1)
    scene = word_id(clip.scenes[0].kind)
    for one in questions_of(clip, moments):
        if TYPE_NAMES[one.kind] in ("order", "inscene"):
            assert one.reply[0] == scene
            assert len(set(one.prompt)) > 4


def test_replies_are_text_then_letter_then_the_end():
    clip = clip_at("train", 0, 0)
    for question in questions(clip):
        one = tokenize_question(question)
        assert one.reply[-1] == END_OF_REPLY
        assert one.open_reply == (*one.reply[:-2], END_OF_REPLY)
        assert (question.groups["type"] == "object") == (not one.open_prompts)
