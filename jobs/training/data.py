"""Training data made from descriptions of generated clips.

Labelled frames for the vision tower, and tokenised questions with target words per visual token.
`curriculum.py` chooses the clips and questions of every step.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor
from torch.utils.data import Dataset

from tango_core.benchmarks.shapes.questions import (
    PROTOCOL,
    TYPES,
    VOCABULARY,
    questions,
    reply_to,
    words,
)
from tango_core.benchmarks.shapes.render import render
from tango_core.benchmarks.shapes.world import (
    COLORS,
    FRAME,
    NUM_MOMENTS,
    PLATE,
    SCENES,
    SHAPES,
    Box,
    ClipDescription,
    clip_at,
    dense_clip_at,
    rng_of,
    sample_moments,
)
from tango_core.models.tiny import tiny_tokenizer
from tango_core.types import Question

PATCH = 8
SIDE = FRAME // PATCH
NUM_PATCHES = SIDE * SIDE
MAX_COUNT = 4

KINDS = (*SHAPES, "flash", "plate")
COLOR_NAMES = tuple(COLORS)
HEADS = {"kind": 9, "color": 9, "digit": 11, "count": 4, "scene": 6, "place": 2}
"""Number of outputs of every linear head per patch; class 0 of the first three is "nothing"."""
PHRASES = len(SHAPES) * len(COLORS) + 10 + len(COLORS) + len(SCENES)
"""Labels of a whole frame: coloured icons, digits, coloured flashes, and the scene."""

# A patch is labelled with an object that covers at least the first share of it, and "nothing" if
# less than the second share is covered; in between it has no label.
_COVERED, _FREE = 0.5, 0.12
_IGNORE = -100
_EDGES = np.arange(SIDE + 1, dtype=np.float32) * PATCH


Labels = dict[str, npt.NDArray[Any]]
"""Labels of the N patches of a frame (row-major), and of the whole frame; -100 is "no label".

`kind`: (N,) 0 for background, else 1 + index in `KINDS`. `color`: (N,) 0 for none, else 1 + index
in `COLOR_NAMES`. `digit`: (N,) 0 for none, else 1 + digit. `count`: (N,) number of icons with the
same shape in this frame, minus 1; -100 without icon. `scene`: () index in `SCENES`. `phrases`:
(PHRASES,) 1 where the label applies to the frame.
"""


def coverage(box: Box) -> npt.NDArray[np.float32]:
    """(SIDE, SIDE) share of every patch that a box covers."""
    across, down = (
        np.clip(np.minimum(_EDGES[1:], high) - np.maximum(_EDGES[:-1], low), 0, None) / PATCH
        for low, high in ((box.left, box.right), (box.top, box.bottom))
    )
    share: npt.NDArray[np.float32] = down[:, None] * across[None, :]
    return share


def label_patches(clip: ClipDescription, moment: int) -> Labels:
    """Label the patches of one frame from the clip's description."""
    boxes = clip.boxes(moment)
    kind, color, digit = (np.zeros((SIDE, SIDE), dtype=np.int64) for _ in range(3))
    count = np.full((SIDE, SIDE), _IGNORE, dtype=np.int64)
    best = np.zeros((SIDE, SIDE), dtype=np.float32)
    scene = SCENES.index(clip.scene_at(moment).kind)
    phrases = np.zeros(PHRASES, dtype=np.float32)
    phrases[-len(SCENES) + scene] = 1
    shown = [clip.sprites[box.sprite] for box in boxes]
    for box, sprite in zip(boxes, shown, strict=True):
        share = coverage(box)
        largest = share > best
        best = np.maximum(best, share)
        tint = COLOR_NAMES.index(sprite.color) if sprite.kind != "plate" else -1
        kind[largest] = 1 + KINDS.index("plate" if sprite.kind == "plate" else sprite.name)
        color[largest] = 1 + tint
        digit[largest] = 1 + int(sprite.name) if sprite.kind == "plate" else 0
        count[largest] = _IGNORE
        if sprite.kind == "icon":
            copies = sum(one.kind == "icon" and one.name == sprite.name for one in shown)
            count[largest] = min(copies, MAX_COUNT) - 1
            phrases[SHAPES.index(sprite.name) * len(COLOR_NAMES) + tint] = 1
        elif sprite.kind == "plate":
            phrases[len(SHAPES) * len(COLOR_NAMES) + int(sprite.name)] = 1
        else:
            phrases[len(SHAPES) * len(COLOR_NAMES) + 10 + tint] = 1
    for values, nothing in ((kind, 0), (color, 0), (digit, 0), (count, _IGNORE)):
        values[best < _COVERED] = _IGNORE
        values[best < _FREE] = nothing
    patches = {"kind": kind, "color": color, "digit": digit, "count": count}
    flat: Labels = {name: values.reshape(-1) for name, values in patches.items()}
    return {**flat, "scene": np.array(scene), "phrases": phrases}


def labelled_frame(seed: int, index: int, plates: float = 0.0) -> Labels:
    """Make one training frame; dense frames and frames of ordinary clips alternate.

    Args:
        seed: Seed of the frames.
        index: Index of the frame.
        plates: Share of the icons of dense frames that are replaced by digits on plates.

    Returns:
        Its labels, and `pixels`, (FRAME, FRAME, 3) uint8.
    """
    if index % 2:
        clip = clip_at("train", seed, index, num_moments=1)
    else:
        clip = _with_plates(dense_clip_at("train", seed, index), plates)
    return {"pixels": render(clip, (0,))[0], **label_patches(clip, 0)}


def _with_plates(clip: ClipDescription, share: float) -> ClipDescription:
    """Replace some icons by digits on plates; these are smaller, so no objects overlap."""
    rng = rng_of(clip.split, clip.seed, clip.index, "plates")
    sprites = tuple(
        replace(one, kind="plate", name=str(rng.integers(10)), color="white", size=PLATE[0])
        if one.kind == "icon" and rng.random() < share
        else one
        for one in clip.sprites
    )
    return replace(clip, sprites=sprites)


Batch = dict[str, Tensor]
"""`pixels` (B, FRAME, FRAME, 3) uint8 and one (B, ...) entry per label of `Labels`."""


class FrameBatches(Dataset[Batch]):
    """Batches of labelled frames, deterministic per step."""

    def __init__(self, seed: int, size: int, plates: float) -> None:
        self.seed, self.size, self.plates = seed, size, plates

    def __getitem__(self, step: int) -> Batch:
        indices = range(step * self.size, (step + 1) * self.size)
        frames = [labelled_frame(self.seed, index, self.plates) for index in indices]
        return {
            name: torch.from_numpy(np.stack([one[name] for one in frames])) for name in frames[0]
        }


DIGIT_WORDS = tuple("0123456789")
PLACES = ("top", "bottom", "left", "right")
TARGET_WORDS = (*SHAPES, "icon", "flash", "digit", *COLOR_NAMES, *DIGIT_WORDS, *SCENES, *PLACES)
"""Words whose weighted embeddings add up to a synthetic token."""

TOKEN_SIDE = SIDE // 2
TOKENS_PER_FRAME = TOKEN_SIDE * TOKEN_SIDE

_INDEX = {word: index for index, word in enumerate(TARGET_WORDS)}
_ICON, _COPIES, _SCENE, _PLACE = 0.5, 0.5, 0.5, 0.4
_LINE = (2 * np.arange(TOKEN_SIDE, dtype=np.float32) + 1) / TOKEN_SIDE - 1

TYPE_NAMES = tuple(TYPES)
TOKEN_IDS: dict[str, int] = tiny_tokenizer(VOCABULARY).get_vocab()
PROMPT_START = (TOKEN_IDS["<|im_start|>"], TOKEN_IDS["user"])
PROMPT_END = (TOKEN_IDS["<|im_end|>"], TOKEN_IDS["<|im_start|>"], TOKEN_IDS["assistant"])
END_OF_REPLY = TOKEN_IDS["<|im_end|>"]


@dataclass(frozen=True)
class TokenizedQuestion:
    """A question as token ids, with and without its options.

    Attributes:
        kind: Index in `TYPE_NAMES`.
        prompt: All ids between the clip and the reply.
        reply: The correct reply including its end token.
        open_prompts: The question without options, in one or two wordings; empty if it would have
            several correct answers.
        open_reply: The correct reply to these: the option's text without its letter.
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
        questions: All questions about the clip.
        visual: Source of its visual tokens: (T * TOKENS_PER_FRAME, len(TARGET_WORDS))
            float32 weights of words, or (T, N, D) float16 states of the vision tower.
    """

    questions: tuple[TokenizedQuestion, ...]
    visual: npt.NDArray[np.floating]


def tokenize_question(question: Question) -> TokenizedQuestion:
    """Turn a question and its correct reply into token ids."""
    prompt = PROTOCOL.render(question).after
    reply = reply_to(question)
    return TokenizedQuestion(
        kind=TYPE_NAMES.index(question.groups["type"]),
        prompt=(*(TOKEN_IDS[word] for word in words(prompt)), *PROMPT_END),
        reply=(*(TOKEN_IDS[word] for word in words(reply)), END_OF_REPLY),
        open_prompts=tuple(
            (*(TOKEN_IDS[word] for word in one), *PROMPT_END) for one in _without_options(question)
        ),
        open_reply=(*(TOKEN_IDS[word] for word in words(reply)[:-1]), END_OF_REPLY),
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
    """Return a clip of the training split and the time steps of its frames.

    A single frame comes from a clip of one moment. Two or four frames come from clips of four
    moments, which often have two scenes: two frames are the shortest sequence with an order. Eight
    or sixteen frames come from clips as long as those of the benchmark.
    """
    num_moments = {1: 1, 2: 4, 4: 4}.get(num_frames, NUM_MOMENTS)
    return clip_at("train", seed, index, num_moments), sample_moments(num_moments, num_frames)


def questions_of(clip: ClipDescription, moments: tuple[int, ...]) -> tuple[TokenizedQuestion, ...]:
    """All questions about a clip; for a single frame also the questions about scenes.

    The benchmark asks about scenes only if there are several. Naming a single scene is easier, so
    training starts with it.
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
    """A sample whose visual tokens are computed from the clip's description without rendering."""
    clip, moments = training_clip(seed, index, num_frames)
    return Sample(questions_of(clip, moments), token_targets(clip, moments))


def token_targets(clip: ClipDescription, moments: Iterable[int]) -> npt.NDArray[np.float32]:
    """Weights of the target words for every pooled token at the given time steps.

    An object has its full weight in a patch that it covers by half or more. The words of an icon
    are its shape, its colour and the number of its copies; every token also has its scene and its
    position in the frame.

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
        words_and_weights = {
            "icon": {sprite.name: 1.0, sprite.color: 1.0, "icon": _ICON},
            "flash": {"flash": 1.0, sprite.color: 1.0},
            "plate": {"digit": 1.0, sprite.name: 1.0},
        }[sprite.kind]
        for word, weight in words_and_weights.items():
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
