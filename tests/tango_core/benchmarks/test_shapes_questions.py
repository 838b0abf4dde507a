"""Questions about the embedded world: right, evenly spread, and unanswerable without the video."""

import re
from collections import Counter, defaultdict

import numpy as np
import pytest

from tango_core.benchmarks.multiple_choice import letter_of
from tango_core.benchmarks.shapes import (
    ASKED,
    COLORS,
    FRAME,
    PROTOCOL,
    TYPES,
    VOCABULARY,
    clip_at,
    pick,
    questions,
    render,
    reply_to,
    rng_of,
    sample_moments,
    words,
)
from tango_core.types import Question


def asked(split, seed, number):
    """Clips with the questions the benchmark would ask."""
    for index in range(number):
        clip = clip_at(split, seed, index)
        yield clip, pick(questions(clip), 5, rng_of(split, seed, index, "pick"))


@pytest.fixture(scope="module")
def held_out():
    return [q for _, chosen in asked("test", 1, 400) for q in chosen]


@pytest.fixture(scope="module")
def training():
    return [q for _, chosen in asked("train", 0, 500) for q in chosen]


# What the words mean, for u to the right and v down, both in [-1, 1].
OUTLINES = {
    "circle": lambda u, v: u**2 + v**2 < 1,
    "square": lambda u, v: np.maximum(abs(u), abs(v)) < 0.9,
    "triangle": lambda u, v: (v < 0.85) & (2 * abs(u) < v + 1),
    "cross": lambda u, v: (np.minimum(abs(u), abs(v)) < 0.35) & (np.maximum(abs(u), abs(v)) < 1),
    "ring": lambda u, v: abs(np.hypot(u, v) - 0.75) < 0.25,
    "diamond": lambda u, v: abs(u) + abs(v) < 1,
}


class Witness:
    """Answers questions from boxes and pixels of all moments, without the question's code."""

    def __init__(self, clip, moments):
        self.clip, self.moments = clip, moments
        self.frames = render(clip).astype(int)
        self.sights = defaultdict(list)
        for moment in moments:
            for box in clip.boxes(moment):
                sprite = clip.sprites[box.sprite]
                self.sights[sprite.name].append((moment, box, sprite))

    def answer(self, text):
        for kind, pattern in TYPES.items():
            match = re.fullmatch(re.escape(pattern).replace(r"\{\}", "(.+)"), text)
            if match:
                return getattr(self, kind)(*match.groups())
        raise AssertionError(text)

    def color(self, name):
        moment, box, _ = self.sights[name][0]
        patch = self.patch(moment, box)[2:-2, 2:-2].reshape(-1, 3)
        vivid = np.median(patch[patch.max(axis=1) - patch.min(axis=1) > 90], axis=0)
        return min(COLORS, key=lambda color: np.abs(vivid - COLORS[color]).sum())

    def flash(self):
        return self.color("flash")

    def shape(self, color):
        names = [n for n in self.sights if not n.isdigit() and n != "flash"]
        (name,) = [n for n in names if self.color(n) == color]
        moment, box, sprite = max(self.sights[name], key=lambda s: s[1].right - s[1].left)
        half = (box.right - box.left) / 2 * sprite.size / sprite.extent[0]
        patch = self.patch(moment, box)
        spread = patch.max(axis=2) - patch.min(axis=2)
        rows, columns = ((np.arange(4 * side) + 0.5) / 4 for side in spread.shape)
        u = ((int(box.left) + columns - box.center[0]) / half)[None, :]
        v = ((int(box.top) + rows - box.center[1]) / half)[:, None]

        def likeness(shape):
            fine = OUTLINES[shape](u, v).reshape(len(patch), 4, -1, 4)
            return np.corrcoef(fine.mean(axis=(1, 3)).ravel(), spread.ravel())[0, 1]

        return max(OUTLINES, key=likeness)

    def digit(self):
        (name,) = [name for name in self.sights if name.isdigit()]
        return name

    def kinds(self):
        return list(dict.fromkeys(self.clip.scene_at(moment).kind for moment in self.moments))

    def order(self, which):
        return self.kinds()[{"first": 0, "last": -1}[which]]

    def inscene(self, name):
        (kind,) = {self.clip.scene_at(moment).kind for moment, _, _ in self.sights[name]}
        return kind

    def object(self, where):
        wanted = where.removeprefix("in the ")
        return {
            name
            for name, sights in self.sights.items()
            if where == "shown" or any(self.clip.scene_at(m).kind == wanted for m, _, _ in sights)
        }

    def count(self, name):
        per_moment = Counter(moment for moment, _, _ in self.sights[name])
        (number,) = set(per_moment.values())
        return str(number)

    def path(self, name):
        centers = np.array([box.center for _, box, _ in self.sights[name]])
        return centers - FRAME / 2

    def direction(self, name):
        path = self.path(name)
        x, y = path[-1] - path[0]
        if abs(x) > abs(y):
            return "right" if x > 0 else "left"
        return "down" if y > 0 else "up"

    def location(self, name):
        (corner,) = {
            f"{'bottom' if y > 0 else 'top'} {'right' if x > 0 else 'left'}"
            for x, y in self.path(name)
        }
        return corner

    def patch(self, moment, box):
        return self.frames[
            moment, int(box.top) : int(box.bottom) + 1, int(box.left) : int(box.right) + 1
        ]


@pytest.mark.parametrize("num_frames", [8, 16])
def test_every_answer_is_what_the_pixels_and_boxes_show(num_frames):
    checked = Counter()
    for index in range(30):
        clip = clip_at("validation", 2, index)
        witness = Witness(clip, sample_moments(clip.num_moments, num_frames))
        for question in questions(clip):
            truth, right = witness.answer(question.text), question.choices[question.answer]
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


def test_questions_are_the_same_every_time():
    assert questions(clip_at("test", 0, 4)) == questions(clip_at("test", 0, 4))


def test_wrong_options_come_from_the_same_clip_first():
    for index in range(60):
        clip = clip_at("test", 0, index)
        colors = {s.color for s in clip.sprites} - {"white"}
        for question in questions(clip):
            if question.groups["type"] in ("color", "flash"):
                shared = colors.intersection(question.choices)
                assert len(shared) == min(4, len(colors))


def test_what_will_not_be_seen_is_not_asked():
    clip = next(c for c in (clip_at("test", 0, i) for i in range(50)) if len(c.scenes) == 3)
    last = clip.scenes[-1]
    few = questions(clip, range(last.start))
    hidden = {s.name for s in clip.sprites if s.scene == 2 and s.kind == "icon"}
    assert hidden
    assert not any(q.groups["type"] == "order" for q in few)
    assert not any(q.id.split("-")[-1] in hidden for q in few if q.groups["type"] == "color")


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


def accuracy(guess, held_out):
    return np.mean([guess(q) == q.answer for q in held_out])


class TestWhoSeesNothing:
    """Every strategy without the video stays at chance, within three standard errors."""

    def near_chance(self, guess, held_out):
        assert len(held_out) >= 1750
        assert accuracy(guess, held_out) == pytest.approx(0.25, abs=0.03)

    @pytest.mark.parametrize("letter", range(4))
    def test_one_letter_always(self, letter, held_out):
        self.near_chance(lambda q: letter, held_out)

    def test_the_most_frequent_letter_of_the_type(self, held_out, training):
        counts = defaultdict(Counter)
        for q in training:
            counts[q.groups["type"]][q.answer] += 1
        self.near_chance(lambda q: counts[q.groups["type"]].most_common(1)[0][0], held_out)

    def test_the_most_frequent_answer_of_the_type(self, held_out, training):
        counts = defaultdict(Counter)
        for q in training:
            counts[q.groups["type"]][q.choices[q.answer]] += 1

        def guess(q):
            known = counts[q.groups["type"]]
            return max(range(4), key=lambda i: known[q.choices[i]])

        self.near_chance(guess, held_out)

    def test_the_answer_most_often_right_when_offered(self, held_out, training):
        right, offered = Counter(), Counter()
        for q in training:
            for index, choice in enumerate(q.choices):
                offered[q.text, choice] += 1
                right[q.text, choice] += index == q.answer

        def guess(q):
            rates = [(right[q.text, c] + 1) / (offered[q.text, c] + 4) for c in q.choices]
            return int(np.argmax(rates))

        self.near_chance(guess, held_out)

    def test_the_option_that_stands_for_the_others(self, held_out, training):
        """Pairs of options: is the right one the one that the others keep company with?"""
        beats = Counter()
        for q in training:
            for choice in q.choices:
                beats[q.choices[q.answer], choice] += 1

        def guess(q):
            return max(range(4), key=lambda i: sum(beats[q.choices[i], c] for c in q.choices))

        self.near_chance(guess, held_out)


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


def test_the_prompt_is_one_line_with_lettered_options():
    question = Question("q", "What color is the circle?", ("red", "blue", "pink", "cyan"), 0)
    prompt = PROTOCOL.render(question)
    assert prompt.before == ""
    assert prompt.after == (
        "What color is the circle? A. red B. blue C. pink D. cyan Answer with the option's letter."
    )


@pytest.mark.parametrize(
    ("reply", "choice"),
    [
        ("red A", 0),
        ("red A ", 0),
        ("top left B", 1),
        ("red B", 1),
        ("A", 0),
        ("(b)", 1),
        ("A. red", 0),
        ("The answer is D.", 3),
        ("blue", 1),
        ("It is pink.", 2),
        ("blue A red", None),
        ("A B", 1),
        ("red E", None),
        ("red blue", None),
        ("green", None),
        ("I cannot tell.", None),
        ("", None),
        ("CUDA error: out of memory", None),
    ],
)
def test_the_last_letter_decides_and_else_the_text(reply, choice):
    question = Question("q", "What color is the circle?", ("red", "blue", "pink", "cyan"), 0)
    assert PROTOCOL.read_choice(reply, question) == choice


def test_the_right_reply_reads_as_the_answer(training):
    for question in training[:300]:
        reply = reply_to(question)
        assert reply.endswith(f" {letter_of(question.answer)}")
        assert PROTOCOL.read_choice(reply, question) == question.answer
        assert PROTOCOL.read_choice(question.choices[question.answer], question) == question.answer


def test_an_unanswered_question_has_no_right_reply():
    with pytest.raises(ValueError, match="'q' has no answer"):
        reply_to(Question("q", "Which?", ("1", "2")))
