"""The whole recipe: sizes of the model, lengths of the stages, what is asked when."""

from __future__ import annotations

from dataclasses import dataclass

from transformers import LlavaOnevisionConfig

from jobs.training.lesson_plan import Phase
from jobs.training.stage import Stage
from tango_core.benchmarks.shapes.benchmark import ASKED, VOCABULARY
from tango_core.models.tiny import tiny_config

FRAME_BATCH = 12
"""Frames per step of the vision stage; larger batches learn less per minute on a CPU."""
PLATES = 0.6
"""Share of the icons of crowded frames that are digits in the second part of the vision stage."""
FRESH = 1_000_000
"""Added to the seed for clips that no earlier stage has drawn."""
MINUTES = 90.0
"""The full recipe's time on two free cores, at most."""

_TRIED = (*ASKED, "object", "count")
DRAWN = (
    Phase(0.20, {1: 1.0}, openly=0.75, kinds=_TRIED),
    Phase(0.50, {1: 0.15, 2: 0.85}, openly=0.4, kinds=_TRIED),
    Phase(0.70, {1: 0.1, 2: 0.3, 4: 0.6}, openly=0.3, kinds=_TRIED),
    Phase(1.00, {1: 0.1, 2: 0.1, 4: 0.3, 8: 0.5}, openly=0.25, kinds=_TRIED),
)
"""Lessons on drawn tokens: single frames without options first, then longer and with options.

Scenes in order are learned from two frames; from four on, they take several times as long.
"""
SEEN = (
    Phase(0.35, {1: 0.3, 2: 0.1, 4: 0.4, 8: 0.2}, openly=0.1, kinds=ASKED),
    Phase(1.00, {1: 0.1, 4: 0.2, 8: 0.6, 16: 0.1}, openly=0.0, kinds=ASKED),
)
"""Lessons on real frames, on the types that the benchmark asks."""


@dataclass(frozen=True)
class Recipe:
    """How long the stages are.

    Attributes:
        vision: Of the tower, on labelled frames.
        digits: The same, on frames with more digits.
        again: That once more, from a high rate down again.
        drawn: Of the decoder, on tokens drawn from descriptions.
        seen: Of projector and decoder, on real frames.
        fit_frames: Frames that the projector's first fit sees.
    """

    vision: Stage
    digits: Stage
    again: Stage
    drawn: Stage
    seen: Stage
    fit_frames: int = 400


FULL = Recipe(
    vision=Stage("vision", steps=2200, rate=1.5e-3),
    digits=Stage("digits", steps=900, rate=1e-3, warmup=50),
    again=Stage("again", steps=700, rate=8e-4, warmup=50),
    drawn=Stage("drawn", steps=1400, rate=2e-3),
    seen=Stage("seen", steps=1000, rate=1e-3, warmup=50),
)
"""What made the embedded weights."""


def recipe_for(minutes: float) -> Recipe:
    """Shorten the stages for less time than the full recipe takes; the result is then worse.

    Raises:
        ValueError: If the time is not positive.
    """
    if not minutes > 0:
        raise ValueError(f"--minutes must be larger than 0, got {minutes:g}")
    share = min(1.0, minutes / MINUTES)
    return Recipe(
        vision=_shorten(FULL.vision, share),
        digits=_shorten(FULL.digits, share),
        again=_shorten(FULL.again, share),
        drawn=_shorten(FULL.drawn, share),
        seen=_shorten(FULL.seen, share),
        fit_frames=FULL.fit_frames,
    )


def _shorten(stage: Stage, share: float) -> Stage:
    """A stage with a share of its steps."""
    steps = max(1, round(share * stage.steps))
    warmup = max(1, round(share * stage.warmup))
    return Stage(stage.name, steps, stage.rate, warmup, stage.every)


def architecture() -> LlavaOnevisionConfig:
    """The embedded model's configuration for the world's vocabulary."""
    return tiny_config(len(VOCABULARY))
