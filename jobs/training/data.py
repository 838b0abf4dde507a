"""Training data made from descriptions of generated clips.

Labelled frames for the vision tower, tokenised questions with target words per visual token,
packing of many questions into one sequence, and the samples and questions of every step.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
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


@dataclass(frozen=True, eq=False)
class PatchLabels:
    """Labels of every patch of a frame (row-major), and of the whole frame.

    Attributes:
        kind: (N,) 0 for background, else 1 + index in `KINDS`; -100 where unclear.
        color: (N,) 0 for none, else 1 + index in `COLOR_NAMES`; -100 where unclear.
        digit: (N,) 0 for none, else 1 + digit; -100 where unclear.
        count: (N,) number of icons with the same shape in this frame, minus 1; -100 without icon.
        scene: Index in `SCENES`.
        phrases: (PHRASES,) 1 where the label applies to the frame.
    """

    kind: npt.NDArray[np.int64]
    color: npt.NDArray[np.int64]
    digit: npt.NDArray[np.int64]
    count: npt.NDArray[np.int64]
    scene: int
    phrases: npt.NDArray[np.float32]


def coverage(box: Box) -> npt.NDArray[np.float32]:
    """(SIDE, SIDE) share of every patch that a box covers."""
    across, down = (
        np.clip(np.minimum(_EDGES[1:], high) - np.maximum(_EDGES[:-1], low), 0, None) / PATCH
        for low, high in ((box.left, box.right), (box.top, box.bottom))
    )
    share: npt.NDArray[np.float32] = down[:, None] * across[None, :]
    return share


def label_patches(clip: ClipDescription, moment: int) -> PatchLabels:
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
    return PatchLabels(
        kind=kind.reshape(-1),
        color=color.reshape(-1),
        digit=digit.reshape(-1),
        count=count.reshape(-1),
        scene=scene,
        phrases=phrases,
    )


def labelled_frame(
    seed: int, index: int, plates: float = 0.0
) -> tuple[npt.NDArray[np.uint8], PatchLabels]:
    """Return one training frame; dense frames and frames of ordinary clips alternate.

    Args:
        seed: Seed of the frames.
        index: Index of the frame.
        plates: Share of the icons of dense frames that are replaced by digits on plates.

    Returns:
        (FRAME, FRAME, 3) uint8 pixels and their labels.
    """
    if index % 2:
        clip = clip_at("train", seed, index, num_moments=1)
    else:
        clip = _with_plates(dense_clip_at("train", seed, index), plates)
    return render(clip, (0,))[0], label_patches(clip, 0)


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


class FrameBatches(Dataset[Batch]):
    """Batches of labelled frames, deterministic per step."""

    def __init__(self, seed: int, size: int, plates: float) -> None:
        self.seed, self.size, self.plates = seed, size, plates

    def __getitem__(self, step: int) -> Batch:
        first = step * self.size
        indices = range(first, first + self.size)
        return frame_batch([labelled_frame(self.seed, index, self.plates) for index in indices])


def frame_batch(frames: Sequence[tuple[npt.NDArray[np.uint8], PatchLabels]]) -> Batch:
    """Stack labelled frames into `pixels` (B, H, W, 3) uint8 and one (B, ...) entry per label."""
    batch = {"pixels": torch.from_numpy(np.stack([pixels for pixels, _ in frames]))}
    for name in ("kind", "color", "digit", "count", "phrases"):
        batch[name] = torch.from_numpy(np.stack([getattr(label, name) for _, label in frames]))
    batch["scene"] = torch.tensor([label.scene for _, label in frames])
    return batch


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
_IDS: dict[str, int] = tiny_tokenizer(VOCABULARY).get_vocab()
PROMPT_START = (_IDS["<|im_start|>"], _IDS["user"])
PROMPT_END = (_IDS["<|im_end|>"], _IDS["<|im_start|>"], _IDS["assistant"])
END_OF_REPLY = _IDS["<|im_end|>"]


def word_id(word: str) -> int:
    """Token id of a word of the vocabulary."""
    return _IDS[word]


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


PromptAndReply = tuple[int, tuple[int, ...], tuple[int, ...]]
"""Type of a question, ids of its prompt and ids of its reply."""


@dataclass(frozen=True, eq=False)
class Packed:
    """Packed sequences: a clip followed by its questions, which do not attend to each other.

    A sequence is `PROMPT_START`, the visual tokens, a newline token, and `text`.

    Attributes:
        text: (B, L) int64 ids of all questions and replies, padded with 0.
        positions: (B, S) float32; the positions of every question start after the clip.
        mask: (B, 1, S, S) bool, `True` where attention is allowed.
        rows: (R,) sample index of every state that predicts a token of a reply.
        columns: (R,) sequence index of these states.
        targets: (R,) int64 ids of the predicted tokens.
        question: (R,) index in the batch of the question they belong to.
        kinds: Type of every question.
    """

    text: Tensor
    positions: Tensor
    mask: Tensor
    rows: Tensor
    columns: Tensor
    targets: Tensor
    question: Tensor
    kinds: tuple[int, ...]


def pack(
    questions: Sequence[Sequence[PromptAndReply]], num_tokens: int, increment: float = 1.0
) -> Packed:
    """Pack the questions of every clip into one sequence.

    Args:
        questions: The questions of every clip.
        num_tokens: Number of visual tokens of a clip, without the newline.
        increment: Position increment from one visual token to the next.
    """
    start = len(PROMPT_START) + num_tokens + 1
    longest = max(sum(len(p) + len(r) - 1 for _, p, r in one) for one in questions)
    size = start + longest
    text = torch.zeros(len(questions), longest, dtype=torch.long)
    positions = torch.zeros(len(questions), size)
    positions[:, :start] = _positions(num_tokens + 1, increment)
    after = len(PROMPT_START) + increment * (num_tokens + 1)
    segment = torch.full((len(questions), size), -1)
    segment[:, :start] = 0
    rows, columns, targets, question = [], [], [], []
    kinds: list[int] = []
    for row, one in enumerate(questions):
        used = 0
        for number, (kind, prompt, reply) in enumerate(one, start=1):
            ids = (*prompt, *reply[:-1])
            text[row, used : used + len(ids)] = torch.tensor(ids)
            here = slice(start + used, start + used + len(ids))
            positions[row, here] = after + torch.arange(len(ids))
            segment[row, here] = number
            for offset, target in enumerate(reply):
                rows.append(row)
                columns.append(start + used + len(prompt) - 1 + offset)
                targets.append(target)
                question.append(len(kinds))
            kinds.append(kind)
            used += len(ids)
    visible = (segment[:, None, :] == 0) | (segment[:, None, :] == segment[:, :, None])
    mask = visible & torch.ones(size, size, dtype=torch.bool).tril()
    return Packed(
        text=text,
        positions=positions,
        mask=mask[:, None],
        rows=torch.tensor(rows),
        columns=torch.tensor(columns),
        targets=torch.tensor(targets),
        question=torch.tensor(question),
        kinds=tuple(kinds),
    )


def _positions(num_visual: int, increment: float) -> Tensor:
    """Positions of the start of the prompt and of a clip's tokens."""
    clip = len(PROMPT_START) + increment * torch.arange(num_visual)
    return torch.cat([torch.arange(len(PROMPT_START)).float(), clip])


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


@dataclass(frozen=True, eq=False)
class StepSamples:
    """The samples of one step; all have the same number of frames and position increment.

    Attributes:
        num_frames: Frames per clip.
        increment: Position increment from one visual token to the next.
        open_share: As in `Phase`.
        kinds: As in `Phase`.
        samples: The clips.
    """

    num_frames: int
    increment: float
    open_share: float
    kinds: tuple[str, ...]
    samples: tuple[Sample, ...]


MakeSample = Callable[[int, int, int], Sample]
"""Makes the sample of (seed, index, number of frames)."""


class CurriculumDataset(Dataset[StepSamples]):
    """The samples of a curriculum, deterministic per step.

    Args:
        phases: Phases in order; the last one ends at 1.
        make_sample: Makes one sample.
        seed: Random seed.
        total: Number of steps of the stage.
    """

    def __init__(
        self, phases: tuple[Phase, ...], make_sample: MakeSample, seed: int, total: int
    ) -> None:
        self.phases, self.make_sample, self.seed, self.total = phases, make_sample, seed, total

    def __getitem__(self, step: int) -> StepSamples:
        phase = next(one for one in self.phases if step < one.until * self.total or one.until >= 1)
        rng = np.random.default_rng((self.seed, step, 1))
        num_frames = int(_draw(phase.frames, rng))
        increment = _draw(INCREMENTS, rng)
        first = step * max(CLIPS_PER_STEP.values())
        samples = tuple(
            self.make_sample(self.seed, first + row, num_frames)
            for row in range(CLIPS_PER_STEP[num_frames])
        )
        return StepSamples(num_frames, increment, phase.open_share, phase.kinds, samples)


def _draw(weights: Mapping[int, float] | Mapping[float, float], rng: np.random.Generator) -> float:
    """Draw a key with probability proportional to its weight."""
    shares = np.array(list(weights.values()))
    return float(rng.choice(list(weights), p=shares / shares.sum()))


class QuestionSampler:
    """Samples questions, types with low accuracy more often.

    Args:
        state: Holds the running accuracy of every type under `"known"`, as in checkpoints.
        kinds: Types that may be chosen.
    """

    def __init__(self, state: dict[str, Any], kinds: tuple[str, ...]) -> None:
        self.accuracy: dict[str, float] = state.setdefault("known", {})
        self.kinds = {TYPE_NAMES.index(kind) for kind in kinds}

    def update(self, by_kind: Mapping[int, list[bool]]) -> None:
        """Update the running accuracies with the answers of a step."""
        for kind, hits in by_kind.items():
            name = TYPE_NAMES[kind]
            share = sum(hits) / len(hits)
            self.accuracy[name] = 0.97 * self.accuracy.get(name, 0.0) + 0.03 * share

    def choose(
        self, sample: Sample, number: int, rng: np.random.Generator
    ) -> tuple[TokenizedQuestion, ...]:
        """Choose up to `number` questions of a sample, without repetition.

        The weight of a type decreases with its accuracy, and is divided among its questions.
        """
        allowed = [one for one in sample.questions if one.kind in self.kinds]
        count = np.bincount([one.kind for one in allowed], minlength=len(TYPE_NAMES))
        weights = np.array(
            [
                max(0.2, 1.1 - self.accuracy.get(TYPE_NAMES[one.kind], 0.0)) / count[one.kind]
                for one in allowed
            ]
        )
        size = min(number, len(allowed))
        if not size:
            return ()
        chosen = rng.choice(len(allowed), size, replace=False, p=weights / weights.sum())
        return tuple(allowed[index] for index in chosen)
