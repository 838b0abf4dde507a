"""Training samples: a clip of the training split with all its questions as token ids.

The language model is first trained on synthetic tokens, weighted sums of word embeddings; then the
projector is fitted to produce them.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from jobs.training.frames import COLOR_NAMES, MAX_COUNT, SIDE, coverage
from tango_core.benchmarks.shapes.questions import (
    PROTOCOL,
    TYPES,
    VOCABULARY,
    questions,
    reply_to,
    words,
)
from tango_core.benchmarks.shapes.world import (
    NUM_MOMENTS,
    SCENES,
    SHAPES,
    ClipDescription,
    clip_at,
    rng_of,
    sample_moments,
)
from tango_core.models.tiny import tiny_tokenizer
from tango_core.types import Question

DIGIT_WORDS = tuple("0123456789")
PLACES = ("top", "bottom", "left", "right")
TARGET_WORDS = (*SHAPES, "icon", "flash", "digit", *COLOR_NAMES, *DIGIT_WORDS, *SCENES, *PLACES)
"""The words whose embeddings are added up."""

TOKEN_SIDE = SIDE // 2
TOKENS_PER_FRAME = TOKEN_SIDE * TOKEN_SIDE

_INDEX = {word: index for index, word in enumerate(TARGET_WORDS)}
_ICON, _COPIES, _SCENE, _PLACE = 0.5, 0.5, 0.5, 0.4
_LINE = (2 * np.arange(TOKEN_SIDE, dtype=np.float32) + 1) / TOKEN_SIDE - 1

TYPE_NAMES = tuple(TYPES)
_IDS: dict[str, int] = tiny_tokenizer(VOCABULARY).get_vocab()
PROMPT_START = (_IDS["<|im_start|>"], _IDS["user"])
PROMPT_END = (_IDS["<|im_end|>"], _IDS["<|im_start|>"], _IDS["assistant"])
END_OF_REPLY = _IDS["<|im_end|>"]


def word_id(word: str) -> int:
    """Token id of a word of the vocabulary."""
    return _IDS[word]


@dataclass(frozen=True)
class TokenizedQuestion:
    """A question as token ids, with options and without.

    Attributes:
        kind: Index in `TYPE_NAMES`.
        prompt: All ids between the clip and the reply.
        reply: The right reply and the id that ends it.
        open_prompts: The same question without options, in one or two wordings; empty if it would
            have several right answers.
        open_reply: The right reply to these: the option's text without its letter.
    """

    kind: int
    prompt: tuple[int, ...]
    reply: tuple[int, ...]
    open_prompts: tuple[tuple[int, ...], ...]
    open_reply: tuple[int, ...]


@dataclass(frozen=True, eq=False)
class Sample:
    """One clip to train on.

    Attributes:
        questions: All its questions.
        visual: What its visual tokens are computed from: (T * TOKENS_PER_FRAME, len(TARGET_WORDS))
            float32 weights of words, or (T, N, D) float16 states of the vision tower.
    """

    questions: tuple[TokenizedQuestion, ...]
    visual: npt.NDArray[np.floating]


def tokenize_question(question: Question) -> TokenizedQuestion:
    """Turn a question and its right reply into token ids."""
    prompt = PROTOCOL.render(question).after
    reply = reply_to(question)
    return TokenizedQuestion(
        kind=TYPE_NAMES.index(question.groups["type"]),
        prompt=(*(_IDS[word] for word in words(prompt)), *PROMPT_END),
        reply=(*(_IDS[word] for word in words(reply)), END_OF_REPLY),
        open_prompts=tuple(
            (*(_IDS[word] for word in one), *PROMPT_END) for one in _without_options(question)
        ),
        open_reply=(*(_IDS[word] for word in words(reply)[:-1]), END_OF_REPLY),
    )


def _without_options(question: Question) -> tuple[list[str], ...]:
    """Words of a question without options, with and without "icon" after its subject.

    The two wordings put the subject at different distances from the end, so that the model learns
    to find it by its content and not by its position.
    """
    text, kind = words(question.text), question.groups["type"]
    if kind == "object":
        return ()
    if kind == "shape":
        return text, text[:-1]
    if kind in ("color", "inscene", "location"):
        return text, [*text, "icon"]
    return (text,)


def training_clip(
    seed: int, index: int, num_frames: int
) -> tuple[ClipDescription, tuple[int, ...]]:
    """Return a clip of the training split and the moments of its frames.

    A single frame comes from a clip of one moment. Two or four frames come from clips of four
    moments, which often have two scenes: two frames are the shortest sequence with an order. Eight
    or sixteen frames come from clips as long as those of the benchmark.
    """
    num_moments = {1: 1, 2: 4, 4: 4}.get(num_frames, NUM_MOMENTS)
    return clip_at("train", seed, index, num_moments), sample_moments(num_moments, num_frames)


def questions_of(clip: ClipDescription, moments: tuple[int, ...]) -> tuple[TokenizedQuestion, ...]:
    """All questions about a clip; for a single frame also the questions about scenes.

    The benchmark asks about scenes only where there are several. Naming the only scene is easier,
    so training begins with it.
    """
    found = list(questions(clip, moments))
    if len(moments) == 1:
        rng = rng_of(clip.split, clip.seed, clip.index, "only scene")
        subjects = [("order", "first"), ("order", "last")]
        shown = {clip.sprites[box.sprite].name for moment in moments for box in clip.boxes(moment)}
        subjects += [("inscene", name) for name in clip.icons if name in shown]
        for kind, subject in subjects:
            others = [one for one in SCENES if one != clip.scenes[0].kind]
            choices = rng.permutation([clip.scenes[0].kind, *rng.permutation(others)[:3]]).tolist()
            found.append(
                Question(
                    id=f"{clip.name}-only-{kind}-{subject}",
                    text=TYPES[kind].format(subject),
                    choices=tuple(choices),
                    answer=choices.index(clip.scenes[0].kind),
                    groups={"type": kind},
                )
            )
    return tuple(tokenize_question(one) for one in found)


def synthetic_sample(seed: int, index: int, num_frames: int) -> Sample:
    """A sample whose visual tokens come from the clip's description; nothing is rendered."""
    clip, moments = training_clip(seed, index, num_frames)
    return Sample(questions_of(clip, moments), token_targets(clip, moments))


def token_targets(clip: ClipDescription, moments: Iterable[int]) -> npt.NDArray[np.float32]:
    """Weights of the words for every pooled token of some moments.

    An object has its full weight in a patch that it covers by half or more. The words of an icon
    are its shape, its colour and the number of its copies; every token also has its scene and its
    place in the frame.

    Returns:
        (T * TOKENS_PER_FRAME, len(TARGET_WORDS)) float32.
    """
    return np.concatenate([_frame_targets(clip, moment) for moment in moments])


def _frame_targets(clip: ClipDescription, moment: int) -> npt.NDArray[np.float32]:
    """(TOKENS_PER_FRAME, len(TARGET_WORDS)) weights of one frame."""
    grid = np.zeros((TOKEN_SIDE, TOKEN_SIDE, len(TARGET_WORDS)), dtype=np.float32)
    boxes = clip.boxes(moment)
    shown = [clip.sprites[box.sprite] for box in boxes]
    for box, sprite in zip(boxes, shown, strict=True):
        patches = np.minimum(1, 2 * coverage(box))
        share = patches.reshape(TOKEN_SIDE, 2, TOKEN_SIDE, 2).mean(axis=(1, 3))
        for word, weight in _words_of(sprite.kind, sprite.name, sprite.color):
            grid[..., _INDEX[word]] += weight * share
        if sprite.kind == "icon":
            copies = sum(one.kind == "icon" and one.name == sprite.name for one in shown)
            grid[..., _INDEX[str(min(copies, MAX_COUNT))]] += _COPIES * share
    grid[..., _INDEX[clip.scene_at(moment).kind]] = _SCENE
    for word, values in (
        ("top", -_LINE[:, None]),
        ("bottom", _LINE[:, None]),
        ("left", -_LINE[None, :]),
        ("right", _LINE[None, :]),
    ):
        grid[..., _INDEX[word]] = _PLACE * np.clip(1 + 1.5 * values, 0, 2)
    return grid.reshape(TOKENS_PER_FRAME, -1)


def _words_of(kind: str, name: str, color: str) -> tuple[tuple[str, float], ...]:
    """Words of an object and their weights."""
    if kind == "icon":
        return (name, 1.0), (color, 1.0), ("icon", _ICON)
    if kind == "flash":
        return ("flash", 1.0), (color, 1.0)
    return ("digit", 1.0), (name, 1.0)
