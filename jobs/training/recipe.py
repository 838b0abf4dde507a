"""The recipe: size of the model, lengths of the stages, and the curriculum of two of them."""

from __future__ import annotations

from dataclasses import asdict, dataclass, replace
from typing import Any

from transformers import LlavaOnevisionConfig

from jobs.training.curriculum import Phase
from jobs.training.loop import Stage
from tango_core.benchmarks.shapes.questions import ASKED, VOCABULARY
from tango_core.models.tiny import tiny_config

FRAME_BATCH = 12
"""Frames per step of the vision stages; larger batches learn less per minute on a CPU."""
DIGIT_SHARE = 0.6
"""Share of the icons of dense frames that are replaced by digits, from the second stage on."""
SEED_OFFSET = 1_000_000
"""Added to the seed for clips that no earlier stage has used."""
MINUTES = 90.0
"""Longest time of the full recipe on two free cores."""

_ALL_KINDS = (*ASKED, "object", "count")
LANGUAGE_PHASES = (
    Phase(0.20, {1: 1.0}, open_share=0.75, kinds=_ALL_KINDS),
    Phase(0.50, {1: 0.15, 2: 0.85}, open_share=0.4, kinds=_ALL_KINDS),
    Phase(0.70, {1: 0.1, 2: 0.3, 4: 0.6}, open_share=0.3, kinds=_ALL_KINDS),
    Phase(1.00, {1: 0.1, 2: 0.1, 4: 0.3, 8: 0.5}, open_share=0.25, kinds=_ALL_KINDS),
)
"""Curriculum on synthetic tokens: single frames without options first, longer clips later.

The order of scenes is learned from two frames; from four or more it takes several times as long.
"""
JOINT_PHASES = (
    Phase(0.35, {1: 0.3, 2: 0.1, 4: 0.4, 8: 0.2}, open_share=0.1, kinds=ASKED),
    Phase(1.00, {1: 0.1, 4: 0.2, 8: 0.6, 16: 0.1}, open_share=0.0, kinds=ASKED),
)
"""Curriculum on rendered frames, with the types of questions that the benchmark asks."""


@dataclass(frozen=True)
class Recipe:
    """Lengths of the stages.

    Attributes:
        vision: Trains the tower on labelled frames.
        vision_digits: The same, on frames with more digits.
        vision_repeat: The same once more, with a new learning-rate schedule.
        language: Trains the language model on synthetic tokens.
        joint: Trains projector and language model on rendered frames.
        fit_frames: Frames for the initial fit of the projector.
    """

    vision: Stage
    vision_digits: Stage
    vision_repeat: Stage
    language: Stage
    joint: Stage
    fit_frames: int = 400

    @property
    def stages(self) -> tuple[Stage, Stage, Stage, Stage, Stage]:
        """The stages in order."""
        return self.vision, self.vision_digits, self.vision_repeat, self.language, self.joint

    def record(self) -> dict[str, Any]:
        """The recipe by the names of its stages, as written to `training.json`."""
        stages = {stage.name: asdict(stage) for stage in self.stages}
        return {**stages, "fit_frames": self.fit_frames}


FULL = Recipe(
    vision=Stage("vision", steps=2200, rate=1.5e-3),
    vision_digits=Stage("digits", steps=900, rate=1e-3, warmup=50),
    vision_repeat=Stage("again", steps=700, rate=8e-4, warmup=50),
    language=Stage("drawn", steps=1400, rate=2e-3),
    joint=Stage("seen", steps=1000, rate=1e-3, warmup=50),
)
"""The recipe of the shipped weights. The names of stages are those of files and MLflow metrics."""


def recipe_for(minutes: float) -> Recipe:
    """Shorten the stages for less time than the full recipe takes; the model is then worse.

    Raises:
        ValueError: If the time is not positive.
    """
    if not minutes > 0:
        raise ValueError(f"--minutes must be larger than 0, got {minutes:g}")
    share = min(1.0, minutes / MINUTES)
    vision, digits, repeat, language, joint = (_shorten(stage, share) for stage in FULL.stages)
    return Recipe(vision, digits, repeat, language, joint, FULL.fit_frames)


def _shorten(stage: Stage, share: float) -> Stage:
    """A stage with a share of its steps."""
    steps, warmup = (max(1, round(share * number)) for number in (stage.steps, stage.warmup))
    return replace(stage, steps=steps, warmup=warmup)


def architecture() -> LlavaOnevisionConfig:
    """Configuration of the embedded model, with its vocabulary."""
    return tiny_config(len(VOCABULARY))
