"""Clips with all their questions as token ids, and how lessons get longer during training."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from jobs.training.meanings import meanings
from tango_core.benchmarks.shapes.benchmark import (
    NUM_MOMENTS,
    PROTOCOL,
    SCENES,
    TYPES,
    VOCABULARY,
    ClipDescription,
    clip_at,
    questions,
    reply_to,
    rng_of,
    sample_moments,
    words,
)
from tango_core.models.tiny import tiny_tokenizer
from tango_core.types import Question

TYPE_NAMES = tuple(TYPES)
_IDS: dict[str, int] = tiny_tokenizer(VOCABULARY).get_vocab()
OPENING = (_IDS["<|im_start|>"], _IDS["user"])
CLOSING = (_IDS["<|im_end|>"], _IDS["<|im_start|>"], _IDS["assistant"])
END = _IDS["<|im_end|>"]


def word_id(word: str) -> int:
    """Id of a word of the world."""
    return _IDS[word]


@dataclass(frozen=True)
class Asked:
    """A question as token ids, with options and without.

    Attributes:
        kind: Index in `TYPE_NAMES`.
        prompt: Everything after the clip up to the reply.
        reply: The right reply with the token that ends it.
        open_prompts: The same question without options, in other words too; empty if it would
            have several answers.
        open_reply: The reply to these: the option's text alone.
    """

    kind: int
    prompt: tuple[int, ...]
    reply: tuple[int, ...]
    open_prompts: tuple[tuple[int, ...], ...]
    open_reply: tuple[int, ...]


@dataclass(frozen=True, eq=False)
class Lesson:
    """One clip to learn from.

    Attributes:
        asked: All its questions.
        visual: What stands for its tokens: (T * TOKENS, len(MEANINGS)) float32 mixtures of words,
            or (T, N, D) float16 states of the tower.
    """

    asked: tuple[Asked, ...]
    visual: npt.NDArray[np.floating]


def ask(question: Question) -> Asked:
    """Put a question and its reply into ids."""
    prompt = PROTOCOL.render(question).after
    reply = reply_to(question)
    return Asked(
        kind=TYPE_NAMES.index(question.groups["type"]),
        prompt=(*(_IDS[word] for word in words(prompt)), *CLOSING),
        reply=(*(_IDS[word] for word in words(reply)), END),
        open_prompts=tuple((*(_IDS[word] for word in one), *CLOSING) for one in _openly(question)),
        open_reply=(*(_IDS[word] for word in words(reply)[:-1]), END),
    )


def _openly(question: Question) -> tuple[list[str], ...]:
    """Words of a question without options, with and without "icon" after what it is about.

    The subject is thus at no fixed distance from the end, so it has to be found by what it is.
    """
    asked, kind = words(question.text), question.groups["type"]
    if kind == "object":
        return ()
    if kind == "shape":
        return asked, asked[:-1]
    if kind in ("color", "inscene", "location"):
        return asked, [*asked, "icon"]
    return (asked,)


def training_clip(
    seed: int, index: int, num_frames: int
) -> tuple[ClipDescription, tuple[int, ...]]:
    """Return a clip of the training split and the moments that are seen of it.

    One frame is a clip of its own. Two or four frames are taken from clips of four moments, which
    often have two scenes: two frames are the shortest sequence in which order matters. Eight or
    sixteen frames are taken from clips as long as those of the benchmark.
    """
    moments = {1: 1, 2: 4, 4: 4}.get(num_frames, NUM_MOMENTS)
    return clip_at("train", seed, index, moments), sample_moments(moments, num_frames)


def ask_all(clip: ClipDescription, seen: tuple[int, ...]) -> tuple[Asked, ...]:
    """Ask everything about a clip, and of a single frame also the questions about scenes.

    The benchmark asks for scenes only where there are several; naming the only one comes first.
    """
    asked = list(questions(clip, seen))
    if len(seen) == 1:
        rng = rng_of(clip.split, clip.seed, clip.index, "only scene")
        subjects = [("order", "first"), ("order", "last")]
        shown = {clip.sprites[box.sprite].name for moment in seen for box in clip.boxes(moment)}
        subjects += [("inscene", name) for name in clip.icons if name in shown]
        for kind, subject in subjects:
            others = [one for one in SCENES if one != clip.scenes[0].kind]
            choices = rng.permutation([clip.scenes[0].kind, *rng.permutation(others)[:3]]).tolist()
            asked.append(
                Question(
                    id=f"{clip.name}-only-{kind}-{subject}",
                    text=TYPES[kind].format(subject),
                    choices=tuple(choices),
                    answer=choices.index(clip.scenes[0].kind),
                    groups={"type": kind},
                )
            )
    return tuple(ask(one) for one in asked)


def drawn_lesson(seed: int, index: int, num_frames: int) -> Lesson:
    """A lesson whose tokens are drawn from the clip's description."""
    clip, seen = training_clip(seed, index, num_frames)
    return Lesson(ask_all(clip, seen), meanings(clip, seen))
