"""The training stages: lengths, learning rates, models and data, and the training loop."""

from __future__ import annotations

import logging
import math
import os
from collections.abc import Callable
from dataclasses import asdict, dataclass, replace
from functools import partial
from pathlib import Path
from statistics import fmean
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, Dataset
from transformers import LlavaOnevisionConfig

from jobs.training.curriculum import (
    QUESTIONS_PER_CLIP,
    CurriculumDataset,
    MakeSample,
    Packed,
    Phase,
    QuestionSampler,
    StepSamples,
    pack,
)
from jobs.training.data import (
    TOKENS_PER_FRAME,
    FrameBatches,
    synthetic_sample,
    token_targets,
    training_clip,
)
from jobs.training.model import (
    Hits,
    JointTrainer,
    LanguageTrainer,
    VisionTrainer,
    fit_projector,
    patch_states,
    rendered_sample,
    synthetic_tokens,
)
from tango_core.benchmarks.shapes.questions import ASKED, VOCABULARY
from tango_core.benchmarks.shapes.render import render
from tango_core.errors import InputError
from tango_core.models.tiny import tiny_config

logger = logging.getLogger(__name__)

# Maximum number of prefetched batches.
_PREPARED = 8


@dataclass(frozen=True)
class Stage:
    """Length and learning rate of a stage.

    Attributes:
        name: Name of its files.
        steps: Number of optimiser steps.
        rate: Peak learning rate; linear warm-up, then cosine decay to 3 % of it.
        warmup: Number of warm-up steps.
        every: Number of steps between checkpoints and reports.
    """

    name: str
    steps: int
    rate: float
    warmup: int = 200
    every: int = 50


def run_stage(
    stage: Stage,
    model: nn.Module,
    batches: Dataset[Any],
    loss_of: Callable[[Any, int], Tensor],
    directory: Path,
    state: dict[str, Any],
) -> None:
    """Train `model` in place, from the last checkpoint in `directory` if there is one.

    Args:
        stage: Length and learning rate.
        model: Model whose parameters with `requires_grad` are trained.
        batches: Batches by step, prepared in another process.
        loss_of: Returns the loss of a batch at a step.
        directory: Holds `<stage>.pt`.
        state: Additional values to save and restore, modified in place by `loss_of`.
    """
    path = directory / f"{stage.name}.pt"
    trained = [value for value in model.parameters() if value.requires_grad]
    groups = [
        {"params": [value for value in trained if value.ndim >= 2], "weight_decay": 0.05},
        {"params": [value for value in trained if value.ndim < 2], "weight_decay": 0.0},
    ]
    optimizer = torch.optim.AdamW(groups, lr=stage.rate, betas=(0.9, 0.98), fused=True)
    first = 0
    if path.is_file():
        saved = torch.load(path, weights_only=True)
        model.load_state_dict(saved["model"])
        optimizer.load_state_dict(saved["optimizer"])
        state.update(saved["state"])
        first = saved["step"]
    loader: DataLoader[Any] = DataLoader(
        batches,
        batch_size=None,
        sampler=range(first, stage.steps),
        num_workers=1,
        prefetch_factor=_PREPARED,
    )
    model.train()
    losses: list[float] = []
    for step, batch in enumerate(loader, start=first):
        for group in optimizer.param_groups:
            group["lr"] = learning_rate(stage, step)
        loss = loss_of(batch, step)
        optimizer.zero_grad(set_to_none=True)
        loss.backward()  # type: ignore[no-untyped-call]
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        losses.append(float(loss.detach()))
        done = step + 1
        if done % stage.every == 0 or done == stage.steps:
            content = {
                "model": model.state_dict(),
                "optimizer": optimizer.state_dict(),
                "state": state,
                "step": done,
            }
            torch.save(content, path.with_suffix(".tmp"))
            os.replace(path.with_suffix(".tmp"), path)
            mean = fmean(losses)
            logger.info("%s: step %d of %d, loss %.2f", stage.name, done, stage.steps, mean)
            losses.clear()
    model.eval()


def learning_rate(stage: Stage, step: int) -> float:
    """Learning rate of a step."""
    if step < stage.warmup:
        return stage.rate * (step + 1) / stage.warmup
    progress = (step - stage.warmup) / max(1, stage.steps - stage.warmup)
    return stage.rate * (0.03 + 0.97 * (1 + math.cos(math.pi * min(1.0, progress))) / 2)


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
"""Curriculum on synthetic tokens, from single frames without options to longer clips.

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
        stages: Three of the vision tower (on labelled frames, on frames with more digits, and again
            with a new learning-rate schedule), the language model on synthetic tokens, and
            projector and language model on rendered frames.
        fit_frames: Number of frames for the initial fit of the projector.
    """

    stages: tuple[Stage, ...]
    fit_frames: int = 400

    def record(self) -> dict[str, Any]:
        """The recipe as a dictionary by stage name, as written to `training.json`."""
        stages = {stage.name: asdict(stage) for stage in self.stages}
        return {**stages, "fit_frames": self.fit_frames}


FULL = Recipe(
    (
        Stage("vision", steps=2200, rate=1.5e-3),
        Stage("digits", steps=900, rate=1e-3, warmup=50),
        Stage("again", steps=700, rate=8e-4, warmup=50),
        Stage("drawn", steps=1400, rate=2e-3),
        Stage("seen", steps=1000, rate=1e-3, warmup=50),
    )
)
"""The recipe of the shipped weights. The names of stages are those of files."""


def recipe_for(minutes: float) -> Recipe:
    """Shorten the stages to fit `minutes`; a shorter training gives a worse model.

    Raises:
        ValueError: If the time is not positive.
    """
    if not minutes > 0:
        raise InputError(f"--minutes must be larger than 0, got {minutes:g}")
    share = min(1.0, minutes / MINUTES)

    stages = []
    for stage in FULL.stages:
        steps, warmup = (max(1, round(share * one)) for one in (stage.steps, stage.warmup))
        stages.append(replace(stage, steps=steps, warmup=warmup))
    return replace(FULL, stages=tuple(stages))


def architecture() -> LlavaOnevisionConfig:
    """Configuration of the built-in model, including its vocabulary size."""
    return tiny_config(len(VOCABULARY))


SamplesLoss = Callable[[StepSamples, Packed, int], tuple[Tensor, Hits]]
"""Loss of (samples, packed questions, step), and which answers were correct."""


@dataclass(frozen=True)
class Training:
    """One training of the whole model.

    Every stage starts from its checkpoint in `directory` if there is one.

    Attributes:
        recipe: Lengths of the stages.
        seed: Random seed.
        directory: Holds the checkpoints.
    """

    recipe: Recipe
    seed: int
    directory: Path

    def vision(self) -> VisionTrainer:
        """Train the tower on labelled frames, finally with more digits, the hardest objects."""
        torch.manual_seed(self.seed)
        trainer = VisionTrainer(architecture().vision_config)
        for number, stage in enumerate(self.recipe.stages[:3]):
            digits = DIGIT_SHARE if number else 0.0
            batches = FrameBatches(self.seed + number * SEED_OFFSET, FRAME_BATCH, digits)

            run_stage(
                stage, trainer, batches, lambda batch, _: trainer.loss(batch), self.directory, {}
            )
        return trainer

    def language(self) -> LanguageTrainer:
        """Train the language model on synthetic tokens."""
        torch.manual_seed(self.seed)
        trainer = LanguageTrainer(architecture())
        noise = torch.Generator()

        def loss_of(batch: StepSamples, packed: Packed, step: int) -> tuple[Tensor, Hits]:
            noise.manual_seed(self.seed * 1_000_003 + step)
            weights = [torch.from_numpy(sample.visual) for sample in batch.samples]
            return trainer.loss(synthetic_tokens(trainer.meaning, weights, noise), packed)

        self._on_questions(3, LANGUAGE_PHASES, trainer, synthetic_sample, loss_of, self.seed)
        return trainer

    def joint(self, vision: VisionTrainer, language: LanguageTrainer) -> JointTrainer:
        """Fit the projector, then train projector and language model on rendered frames."""
        vision.requires_grad_(False)
        torch.manual_seed(self.seed)
        states, targets = [], []
        with torch.no_grad():
            for index in range(self.recipe.fit_frames):
                clip, moments = training_clip(self.seed + 3 * SEED_OFFSET, index, 1)
                states.append(patch_states(vision, torch.from_numpy(render(clip, moments))))
                targets.append(torch.from_numpy(token_targets(clip, moments)) @ language.meaning)
        parts = torch.cat(states), torch.stack(targets)
        projector = fit_projector(architecture(), vision, *parts)
        trainer = JointTrainer(projector, language)

        def loss_of(batch: StepSamples, packed: Packed, step: int) -> tuple[Tensor, Hits]:
            return trainer.loss(batch.samples, packed)

        # Different clips from those of the language stage.
        make_sample, seed = partial(rendered_sample, vision), self.seed + SEED_OFFSET
        self._on_questions(4, JOINT_PHASES, trainer, make_sample, loss_of, seed)
        return trainer

    def _on_questions(
        self,
        number: int,
        phases: tuple[Phase, ...],
        trainer: nn.Module,
        make_sample: MakeSample,
        loss_of: SamplesLoss,
        seed: int,
    ) -> None:
        """Run the stage `number` on questions about clips."""
        stage = self.recipe.stages[number]
        state: dict[str, Any] = {"known": {}}

        def step_loss(batch: StepSamples, step: int) -> Tensor:
            sampler = QuestionSampler(state, batch.phase.kinds)
            rng = np.random.default_rng((seed, step, 2))
            size, share = QUESTIONS_PER_CLIP[batch.num_frames], batch.phase.open_share
            packed = pack(
                [sampler.choose(sample, size, share, rng) for sample in batch.samples],
                batch.num_frames * TOKENS_PER_FRAME,
                batch.increment,
            )
            loss, by_kind = loss_of(batch, packed, step)
            sampler.update(by_kind)
            return loss

        batches = CurriculumDataset(phases, make_sample, seed, stage.steps)
        run_stage(stage, trainer, batches, step_loss, self.directory, state)
