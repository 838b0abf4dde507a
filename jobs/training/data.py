"""Training data made from descriptions of generated clips.

Labelled frames for the vision tower; clips with tokenised questions, their choice for every step,
and the packing of many questions into one sequence.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

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


def coverage(box: Box) -> npt.NDArray[np.float32]:
    """(SIDE, SIDE) share of every patch that a box covers."""
    across, down = (
        np.clip(np.minimum(_EDGES[1:], high) - np.maximum(_EDGES[:-1], low), 0, None) / PATCH
        for low, high in ((box.left, box.right), (box.top, box.bottom))
    )
    share: npt.NDArray[np.float32] = down[:, None] * across[None, :]
    return share


def label_patches(clip: ClipDescription, moment: int) -> dict[str, npt.NDArray[Any]]:
    """Label the N patches of one frame (row-major), and the frame; -100 is "no label".

    `kind`: (N,) 0 for background, else 1 + index in `KINDS`. `color`: (N,) 0 for none, else 1 +
    index in `COLOR_NAMES`. `digit`: (N,) 0 for none, else 1 + digit. `count`: (N,) number of icons
    with the same shape in this frame, minus 1; -100 without icon. `scene`: () index in `SCENES`.
    `phrases`: (PHRASES,) 1 where the label applies to the frame.
    """
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
    flat = {name: values.reshape(-1) for name, values in patches.items()}
    return {**flat, "scene": np.array(scene), "phrases": phrases}


def frame_batch(seed: int, size: int, plates: float, step: int) -> dict[str, Tensor]:
    """Make the training frames of a step; dense frames and frames of ordinary clips alternate.

    Args:
        seed: Seed of the frames.
        size: Number of frames.
        plates: Share of the icons of dense frames that are replaced by digits on plates.
        step: Number of the step.

    Returns:
        `pixels`, (B, FRAME, FRAME, 3) uint8, and one (B, ...) entry per label of `label_patches`.
    """
    frames = []
    for index in range(step * size, (step + 1) * size):
        if index % 2:
            clip = clip_at("train", seed, index, num_moments=1)
        else:
            clip = _with_plates(dense_clip_at("train", seed, index), plates)
        frames.append({"pixels": render(clip, (0,))[0], **label_patches(clip, 0)})
    return {name: torch.from_numpy(np.stack([one[name] for one in frames])) for name in frames[0]}


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


class Wording(NamedTuple):
    """One wording of a question as token ids.

    Attributes:
        kind: Type of the question: index in `TYPE_NAMES`.
        prompt: All ids between the clip and the reply.
        reply: The correct reply including its end token.
    """

    kind: int
    prompt: tuple[int, ...]
    reply: tuple[int, ...]


class Sample(NamedTuple):
    """One clip to train on.

    Attributes:
        questions: The wordings of every question about the clip: the first has options, the others
            have none; these are missing if there would be several correct answers.
        visual: Source of its visual tokens: (T * TOKENS_PER_FRAME, len(TARGET_WORDS))
            float32 weights of words, or (T, N, D) float16 states of the vision tower.
    """

    questions: tuple[tuple[Wording, ...], ...]
    visual: npt.NDArray[np.floating]


def tokenize_question(question: Question) -> tuple[Wording, ...]:
    """Turn a question and its correct reply into token ids, with and without its options."""
    kind, reply = TYPE_NAMES.index(question.groups["type"]), words(reply_to(question))
    texts = [(words(PROTOCOL.render(question).after), reply)]
    # Without options the reply is the option's text without its letter.
    texts += [(text, reply[:-1]) for text in _without_options(question)]
    return tuple(
        Wording(
            kind,
            (*(TOKEN_IDS[word] for word in text), *PROMPT_END),
            (*(TOKEN_IDS[word] for word in answer), END_OF_REPLY),
        )
        for text, answer in texts
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
    if kind in ("color", "inscene"):
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


def questions_of(
    clip: ClipDescription, moments: tuple[int, ...]
) -> tuple[tuple[Wording, ...], ...]:
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


CLIPS_PER_STEP = {1: 12, 2: 7, 4: 4, 8: 3, 16: 2}
"""By number of frames."""
QUESTIONS_PER_CLIP = {1: 6, 2: 7, 4: 8, 8: 9, 16: 12}
"""By number of frames."""
INCREMENTS = {1.0: 0.5, 1 / 2: 0.125, 1 / 4: 0.125, 1 / 8: 0.125, 1 / 16: 0.125}
"""Probability of every position increment from one visual token to the next.

Variable visual position encoding (V2PE, from InternVL3): a language model trained only with 64
positions per frame infers the order of scenes from absolute distances, and fails on pruned clips
whose tokens are renumbered. At inference the increment is 1.
"""


@dataclass(frozen=True)
class Phase:
    """A part of a stage.

    Attributes:
        until: End of the phase as a share of the stage's steps.
        frames: Sampling weight of every number of frames.
        open_share: Share of questions without options.
        kinds: Types of questions that are asked.
    """

    until: float
    frames: dict[int, float]
    open_share: float
    kinds: tuple[str, ...] = TYPE_NAMES


class StepSamples(NamedTuple):
    """The samples of one step; all have the same number of frames and position increment."""

    phase: Phase
    num_frames: int
    increment: float
    samples: tuple[Sample, ...]


MakeSample = Callable[[int, int, int], Sample]
"""Makes the sample of (seed, index, number of frames)."""


def step_samples(
    phases: Sequence[Phase], make_sample: MakeSample, seed: int, total: int, step: int
) -> StepSamples:
    """Make the samples of a step; equal arguments give equal samples.

    Args:
        phases: Phases of the stage in order; the last one ends at 1.
        make_sample: Makes one sample.
        seed: Random seed.
        total: Number of steps of the stage.
        step: Number of the step.
    """
    phase = next(one for one in phases if step < one.until * total or one.until >= 1)
    rng = np.random.default_rng((seed, step, 1))
    num_frames, increment = int(_draw(phase.frames, rng)), _draw(INCREMENTS, rng)
    first = step * max(CLIPS_PER_STEP.values())
    rows = range(first, first + CLIPS_PER_STEP[num_frames])
    samples = tuple(make_sample(seed, row, num_frames) for row in rows)
    return StepSamples(phase, num_frames, increment, samples)


def _draw(weights: Mapping[int, float] | Mapping[float, float], rng: np.random.Generator) -> float:
    """Draw a key with probability proportional to its weight."""
    shares = np.array(list(weights.values()))
    return float(rng.choice(list(weights), p=shares / shares.sum()))


def choose_questions(
    batch: StepSamples, accuracy: Mapping[str, float], rng: np.random.Generator
) -> list[list[Wording]]:
    """Choose questions about every sample of a step, types with low accuracy more often.

    The weight of a type decreases with its accuracy, and is divided among its questions.

    Args:
        batch: The samples.
        accuracy: Running accuracy of the types that have been asked.
        rng: Source of random numbers.
    """
    kinds = {TYPE_NAMES.index(kind) for kind in batch.phase.kinds}
    weight_of = [max(0.2, 1.1 - accuracy.get(name, 0.0)) for name in TYPE_NAMES]
    chosen = []
    for sample in batch.samples:
        allowed = [one for one in sample.questions if one[0].kind in kinds]
        counts = Counter(one[0].kind for one in allowed)
        weights = np.array([weight_of[one[0].kind] / counts[one[0].kind] for one in allowed])
        size, picked = min(QUESTIONS_PER_CLIP[batch.num_frames], len(allowed)), []
        shares = weights / weights.sum() if size else None
        for index in rng.choice(len(allowed), size, replace=False, p=shares):
            with_options, *without = allowed[index]
            is_open = without and rng.random() < batch.phase.open_share
            picked.append(without[int(rng.integers(len(without)))] if is_open else with_options)
        chosen.append(picked)
    return chosen


class Packed(NamedTuple):
    """Packed sequences: a clip followed by its questions, which do not attend to each other.

    A sequence is `PROMPT_START`, the visual tokens, a newline token, and `text`.

    Attributes:
        text: (B, L) int64 ids of all questions and replies, padded with 0.
        labels: (B, L) int64 ids of the tokens of replies that each state predicts, else -100.
        question: (B, L) int64 index in the batch of the question of each id, else -1.
        positions: (B, S) float32; the positions of every question start after the clip.
        mask: (B, 1, S, S) bool, `True` where attention is allowed.
        kinds: Type of every question.
    """

    text: Tensor
    labels: Tensor
    question: Tensor
    positions: Tensor
    mask: Tensor
    kinds: tuple[int, ...]


def pack(questions: Sequence[Sequence[Wording]], num_tokens: int, increment: float = 1.0) -> Packed:
    """Pack the questions of every clip into one sequence.

    Args:
        questions: The questions of every clip.
        num_tokens: Number of visual tokens of a clip, without the newline.
        increment: Position increment from one visual token to the next.
    """
    longest = max(sum(len(one.prompt) + len(one.reply) - 1 for one in own) for own in questions)
    shape = len(questions), longest
    text, offsets = torch.zeros(shape, dtype=torch.long), torch.zeros(shape)
    labels, question = torch.full(shape, _IGNORE), torch.full(shape, -1)
    kinds: list[int] = []
    for row, own in enumerate(questions):
        start = 0
        for kind, prompt, reply in own:
            end = start + len(prompt) + len(reply) - 1
            text[row, start:end] = torch.tensor((*prompt, *reply[:-1]))
            labels[row, end - len(reply) : end] = torch.tensor(reply)
            question[row, start:end] = len(kinds)
            offsets[row, start:end] = torch.arange(end - start)
            kinds.append(kind)
            start = end
    before, clip = len(PROMPT_START), increment * torch.arange(num_tokens + 2)
    shown = torch.cat([torch.arange(before), before + clip[:-1]]).expand(len(text), -1)
    positions = torch.cat([shown, before + clip[-1] + offsets], dim=1)
    # 0 for the clip, which all questions see, and for the padding, which only padding sees.
    segment = torch.cat([torch.zeros_like(shown, dtype=torch.long), question + 1], dim=1)
    visible = (segment[:, None, :] == 0) | (segment[:, None, :] == segment[:, :, None])
    mask = visible & torch.ones(visible.shape[1:], dtype=torch.bool).tril()
    return Packed(text, labels, question, positions, mask[:, None], tuple(kinds))
