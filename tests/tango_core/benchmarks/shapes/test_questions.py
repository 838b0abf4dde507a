"""Questions about the embedded world: right, evenly spread, about what is seen."""

from collections import Counter

import pytest
from shapes_oracle import Oracle

from tango_core.benchmarks.shapes.questions import ASKED, TYPES, questions
from tango_core.benchmarks.shapes.world import clip_at, sample_moments


@pytest.mark.parametrize("num_frames", [8, 16])
def test_every_answer_is_what_the_pixels_and_boxes_show(num_frames):
    checked = Counter()
    for index in range(30):
        clip = clip_at("validation", 2, index)
        oracle = Oracle(clip, sample_moments(clip.num_moments, num_frames))
        for question in questions(clip):
            truth, right = oracle.answer(question.text), question.choices[question.answer]
            kind = question.groups["type"]
            if kind == "object":
                assert truth.intersection(question.choices) == {right}, question
            else:
                assert truth == right, question
            checked[kind] += 1
    assert set(checked) == set(TYPES)
    assert min(checked.values()) >= 10


def test_questions_have_four_different_options_groups_and_ids():
    seen = set()
    for index in range(100):
        clip = clip_at("test", 0, index)
        for question in questions(clip):
            assert len(set(question.choices)) == 4
            assert question.groups["camera"] == clip.camera
            assert question.groups["scenes"] == str(len(clip.scenes))
            assert question.id.startswith(clip.name)
            assert question.id not in seen
            seen.add(question.id)


@pytest.mark.parametrize("num_moments", [1, 2, 4, 8])
def test_short_clips_are_asked_only_what_they_show(num_moments):
    kinds = set()
    for index in range(60):
        kinds |= {q.groups["type"] for q in questions(clip_at("train", 0, index, num_moments))}
    assert {"color", "shape", "digit", "flash", "object", "count", "location"} <= kinds
    assert ("order" in kinds) == (num_moments >= 4)
    assert ("direction" in kinds) == (num_moments >= 2)


def test_types_and_letters_are_balanced(held_out):
    types = Counter(q.groups["type"] for q in held_out)
    assert set(types) == set(ASKED) < set(TYPES)
    assert max(types.values()) <= 1.6 * min(types.values())
    letters = Counter(q.answer for q in held_out)
    assert all(0.21 <= letters[letter] / len(held_out) <= 0.29 for letter in range(4))
