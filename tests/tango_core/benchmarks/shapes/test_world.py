"""The embedded world: its clips, its questions, and what can be guessed or read about them."""

from __future__ import annotations

import hashlib
import re
from collections import Counter, defaultdict
from dataclasses import replace
from itertools import combinations

import numpy as np
import pytest
from shapes_oracle import Oracle

from tango_core.benchmarks.scoring.multiple_choice import letter_of
from tango_core.benchmarks.shapes import world
from tango_core.benchmarks.shapes.benchmark import ShapesBenchmark
from tango_core.benchmarks.shapes.questions import (
    ASKED,
    PROTOCOL,
    TYPES,
    VOCABULARY,
    clip_of,
    cover_of,
    questions,
    reply_to,
    sprites_asked,
    tokens_of,
    words,
)
from tango_core.benchmarks.shapes.render import render
from tango_core.benchmarks.shapes.world import SECONDS_PER_MOMENT, Box, clip_at, sample_moments
from tango_core.types import Question


@pytest.fixture(scope="module")
def clips():
    return [world.clip_at("test", 0, index) for index in range(150)]


def content(clip):
    """What is in a clip, its name left out, to a thousandth of a pixel."""
    text = re.sub(
        r"-?\d+\.\d+(e-?\d+)?",
        lambda number: f"{float(number[0]):.3f}",
        repr((clip.scenes, clip.sprites)),
    )
    return hashlib.sha256(text.encode()).hexdigest()


def test_no_clip_is_in_two_splits_or_seeds():
    keys = [(split, seed) for split in ("train", "validation", "test") for seed in (0, 1, 7)]
    seen = [content(world.clip_at(*key, index)) for key in keys for index in range(60)]
    assert len(set(seen)) == len(seen) == 540
    frames = [
        render(world.clip_at(*key, index), [0]).tobytes() for key in keys for index in range(3)
    ]
    assert len(set(frames)) == 27


def test_a_changed_world_needs_a_new_version():
    """If this fails: raise `WORLD_VERSION` and note the digests of clips and questions."""
    clips = [world.clip_at("train", 0, index) for index in range(20)]
    digests = tuple(
        hashlib.sha256(text.encode()).hexdigest()[:16]
        for text in ("".join(map(content, clips)), repr([questions(clip) for clip in clips]))
    )
    assert digests == {1: ("c6e05de07a73afc2", "06100262c02fa9e1")}[world.WORLD_VERSION]


def test_moments_can_be_rendered_alone_and_in_any_order(clips):
    for clip in clips[:4]:
        full = render(clip)
        picked = [11, 3, 0, 15]
        assert full.shape == (world.NUM_MOMENTS, world.FRAME, world.FRAME, 3)
        np.testing.assert_array_equal(render(clip, picked), full[picked])


def test_everything_stays_inside_the_frame_and_apart(clips):
    for clip in clips:
        for moment in range(clip.num_moments):
            boxes = clip.boxes(moment)
            for box in boxes:
                assert 0 <= box.left < box.right <= world.FRAME
                assert 0 <= box.top < box.bottom <= world.FRAME
            for one, two in combinations(boxes, 2):
                beside = one.right <= two.left or two.right <= one.left
                assert beside or one.bottom <= two.top or two.bottom <= one.top


@pytest.mark.parametrize("num_frames", [8, 9, 12, 16, 32])
@pytest.mark.parametrize("rounded", [False, True])
def test_no_sampler_of_eight_or_more_frames_misses_anything(clips, num_frames, rounded):
    places = np.linspace(0, world.NUM_MOMENTS - 1, num_frames)
    seen = set((places.round() if rounded else places).astype(int).tolist())
    for clip in clips:
        for thing in (*clip.sprites, *clip.scenes):
            assert not seen.isdisjoint(range(thing.start, thing.stop))


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
    assert {"color", "shape", "digit", "flash", "object", "count"} <= kinds
    assert ("order" in kinds) == (num_moments >= 4)


def test_types_and_letters_are_balanced(held_out):
    types = Counter(q.groups["type"] for q in held_out)
    assert set(types) == set(ASKED) < set(TYPES)
    assert max(types.values()) <= 1.6 * min(types.values())
    letters = Counter(q.answer for q in held_out)
    assert all(0.21 <= letters[letter] / len(held_out) <= 0.29 for letter in range(4))


def accuracy(guess, held_out):
    return np.mean([guess(q) == q.answer for q in held_out])


# Strategies without the video stay at chance, within three standard errors.


def test_the_most_frequent_answer_of_the_type_is_a_guess(held_out, training):
    counts = defaultdict(Counter)
    for q in training:
        counts[q.groups["type"]][q.choices[q.answer]] += 1

    def guess(q):
        known = counts[q.groups["type"]]
        return max(range(4), key=lambda i: known[q.choices[i]])

    assert accuracy(guess, held_out) == pytest.approx(0.25, abs=0.03)


def test_the_answer_most_often_right_when_offered_is_a_guess(held_out, training):
    right, offered = Counter(), Counter()
    for q in training:
        for index, choice in enumerate(q.choices):
            offered[q.text, choice] += 1
            right[q.text, choice] += index == q.answer

    def guess(q):
        rates = [(right[q.text, c] + 1) / (offered[q.text, c] + 4) for c in q.choices]
        return int(np.argmax(rates))

    assert len(held_out) >= 1750
    assert accuracy(guess, held_out) == pytest.approx(0.25, abs=0.03)


def test_every_word_is_in_the_vocabulary(training):
    known = set(VOCABULARY)
    assert len(known) == len(VOCABULARY)
    used = set()
    for question in training:
        prompt = PROTOCOL.render(question)
        used |= set(words(f"{prompt.before} {prompt.after} {reply_to(question)}"))
    assert used <= known
    lower = {word.lower() for word in used if len(word) > 1}
    assert lower <= known


@pytest.mark.parametrize(
    ("choice", "replies"),
    [
        (0, ["red A", "red A ", "A", "A. red"]),
        (1, ["top left B", "red B", "(b)", "blue", "A B"]),
        (2, ["It is pink."]),
        (3, ["The answer is D."]),
        (None, ["blue A red", "red E", "red blue", "green", "I cannot tell.", ""]),
        (None, ["CUDA error: out of memory"]),
    ],
)
def test_the_last_letter_decides_and_else_the_text(choice, replies):
    question = Question("q", "What color is the circle?", ("red", "blue", "pink", "cyan"), 0)
    assert {reply: PROTOCOL.read_choice(reply, question) for reply in replies} == dict.fromkeys(
        replies, choice
    )


def test_the_right_reply_reads_as_the_answer(training):
    for question in training[:300]:
        reply = reply_to(question)
        assert reply.endswith(f" {letter_of(question.answer)}")
        assert PROTOCOL.read_choice(reply, question) == question.answer
        assert PROTOCOL.read_choice(question.choices[question.answer], question) == question.answer


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
