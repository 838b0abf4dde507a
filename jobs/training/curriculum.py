"""The curriculum: which clips are used at which step, and which of their questions."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from torch.utils.data import Dataset

from jobs.training.samples import TYPE_NAMES, Sample, TokenizedQuestion

CLIPS_PER_STEP = {1: 12, 2: 7, 4: 4, 8: 3, 16: 2}
"""By number of frames."""
QUESTIONS_PER_CLIP = {1: 6, 2: 7, 4: 8, 8: 9, 16: 12}
"""By number of frames."""
INCREMENTS = {1.0: 0.5, 1 / 2: 0.125, 1 / 4: 0.125, 1 / 8: 0.125, 1 / 16: 0.125}
"""Probability of every position increment from one visual token to the next.

Variable visual position encoding (V2PE, of InternVL3): a language model that was trained with 64
positions per frame only reads the order of scenes from absolute distances. It then fails on every
clip with fewer tokens if these are renumbered, whichever they are. The model is used with an
increment of 1.
"""


@dataclass(frozen=True)
class Phase:
    """A part of a stage.

    Attributes:
        until: Share of the stage's steps at which it ends.
        frames: Weight of every number of frames.
        open_share: Share of questions asked without options.
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
    """The samples by step; the same step always gives the same samples.

    Args:
        phases: In order; the last one ends at 1.
        make_sample: Makes one sample.
        seed: Seed of everything that is random.
        total: Steps of the whole stage.
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
    """Draw a key by its weight."""
    shares = np.array(list(weights.values()))
    return float(rng.choice(list(weights), p=shares / shares.sum()))


class QuestionSampler:
    """Chooses questions; types with a low accuracy are chosen more often.

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

        The weight of a type falls as its accuracy rises, and is shared by its questions.
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
