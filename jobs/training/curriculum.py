"""Clips and questions of every training step, and packing of many questions into one sequence."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import Dataset

from jobs.training.data import PROMPT_START, TYPE_NAMES, Sample

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
    before = len(PROMPT_START)
    positions[:, :before] = torch.arange(before)
    positions[:, before:start] = before + increment * torch.arange(num_tokens + 1)
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
        phase: Phase of the step.
        num_frames: Frames per clip.
        increment: Position increment from one visual token to the next.
        samples: The clips.
    """

    phase: Phase
    num_frames: int
    increment: float
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
        return StepSamples(phase, num_frames, increment, samples)


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
        self, sample: Sample, number: int, open_share: float, rng: np.random.Generator
    ) -> list[PromptAndReply]:
        """Choose up to `number` questions of a sample, without repetition.

        The weight of a type decreases with its accuracy, and is divided among its questions.

        Args:
            sample: A clip.
            number: Maximum number of questions.
            open_share: Share of questions without options; see `Phase`.
            rng: Source of random numbers.
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
            return []
        chosen: list[PromptAndReply] = []
        for index in rng.choice(len(allowed), size, replace=False, p=weights / weights.sum()):
            one = allowed[index]
            if one.open_prompts and rng.random() < open_share:
                prompt = one.open_prompts[int(rng.integers(len(one.open_prompts)))]
                chosen.append((one.kind, prompt, one.open_reply))
            else:
                chosen.append((one.kind, one.prompt, one.reply))
        return chosen
