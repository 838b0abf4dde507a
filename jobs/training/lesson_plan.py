"""Which clips come at which step, and which of their questions are asked."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from torch.utils.data import DataLoader, IterableDataset

from jobs.training.lessons import TYPE_NAMES, Asked, Lesson

CLIPS = {1: 12, 2: 7, 4: 4, 8: 3, 16: 2}
"""Clips per step by number of frames."""
QUESTIONS = {1: 6, 2: 7, 4: 8, 8: 9, 16: 12}
"""Questions per clip by number of frames."""
PITCHES = {1.0: 0.5, 1 / 2: 0.125, 1 / 4: 0.125, 1 / 8: 0.125, 1 / 16: 0.125}
"""Weight of every distance between the positions of neighbouring visual tokens.

Variable visual position encoding (V2PE, of InternVL3): a decoder that has only ever seen a frame
take 64 positions reads the order of scenes from absolute distances, and then fails on any clip
whose tokens are fewer and counted anew, whichever they are. The model is used at a distance of 1.
"""


@dataclass(frozen=True)
class Phase:
    """A part of a stage.

    Attributes:
        until: Share of the stage's steps at which it ends.
        frames: Weight of every number of frames.
        openly: Share of questions asked without options.
        kinds: Types of questions that are asked.
    """

    until: float
    frames: dict[int, float]
    openly: float
    kinds: tuple[str, ...] = TYPE_NAMES


@dataclass(frozen=True, eq=False)
class StepLessons:
    """The clips of one step, all of the same length and with positions at the same distance."""

    num_frames: int
    pitch: float
    openly: float
    kinds: tuple[str, ...]
    lessons: tuple[Lesson, ...]


Lesson_of = Callable[[int, int, int], Lesson]


class Lessons(IterableDataset[StepLessons]):
    """Lessons of every step; the same step always gives the same lessons.

    Args:
        plan: Phases in order; the last one ends at 1.
        lesson_of: Makes the lesson of (seed, index, frames).
        seed: Decides all that is drawn.
        total: Steps of the whole stage.
        first: First step.
        last: Step before which to stop.
    """

    def __init__(
        self,
        plan: tuple[Phase, ...],
        lesson_of: Lesson_of,
        seed: int,
        total: int,
        first: int,
        last: int,
    ) -> None:
        self.plan, self.lesson_of, self.seed = plan, lesson_of, seed
        self.total, self.first, self.last = total, first, last

    def __iter__(self) -> Iterator[StepLessons]:
        for step in range(self.first, self.last):
            yield self.at(step)

    def at(self, step: int) -> StepLessons:
        """Draw the lessons of a step."""
        phase = next(one for one in self.plan if step < one.until * self.total or one.until >= 1)
        rng = np.random.default_rng((self.seed, step, 1))
        frames = int(_draw(phase.frames, rng))
        pitch = _draw(PITCHES, rng)
        first = step * max(CLIPS.values())
        lessons = tuple(
            self.lesson_of(self.seed, first + row, frames) for row in range(CLIPS[frames])
        )
        return StepLessons(frames, pitch, phase.openly, phase.kinds, lessons)


def _draw(weights: Mapping[int, float] | Mapping[float, float], rng: np.random.Generator) -> float:
    """Draw a key by its weight."""
    shares = np.array(list(weights.values()))
    return float(rng.choice(list(weights), p=shares / shares.sum()))


def stream(dataset: IterableDataset[Any], workers: int = 1) -> Iterator[Any]:
    """Draw ahead in another process."""
    return iter(DataLoader(dataset, batch_size=None, num_workers=workers, prefetch_factor=6))


class TypeBalance:
    """Asks more of what is not known yet.

    Args:
        state: Keeps the running share of right answers by type, across checkpoints.
        kept: Types that are asked at all.
    """

    def __init__(self, state: dict[str, Any], kept: tuple[str, ...]) -> None:
        self.known: dict[str, float] = state.setdefault("known", {})
        self.kept = {TYPE_NAMES.index(kind) for kind in kept}

    def update(self, by_kind: dict[int, list[bool]]) -> None:
        """Take the answers of a step into account."""
        for kind, hits in by_kind.items():
            name = TYPE_NAMES[kind]
            share = sum(hits) / len(hits)
            self.known[name] = 0.97 * self.known.get(name, 0.0) + 0.03 * share

    def choose(self, lesson: Lesson, number: int, rng: np.random.Generator) -> tuple[Asked, ...]:
        """Choose questions of a lesson: every type with a weight that falls as it is learned."""
        asked = [one for one in lesson.asked if one.kind in self.kept]
        count = np.bincount([one.kind for one in asked], minlength=len(TYPE_NAMES))
        weights = np.array(
            [
                max(0.2, 1.1 - self.known.get(TYPE_NAMES[one.kind], 0.0)) / count[one.kind]
                for one in asked
            ]
        )
        size = min(number, len(asked))
        if not size:
            return ()
        picked = rng.choice(len(asked), size, replace=False, p=weights / weights.sum())
        return tuple(asked[index] for index in picked)
