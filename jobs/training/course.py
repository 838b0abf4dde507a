"""The stages of the recipe, one after the other, each from its checkpoint if it has one."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from transformers import LlavaOnevisionConfig

from jobs.training.decoder import DecoderTrainer, drawn_tokens, figures_of
from jobs.training.frames import frame_batches
from jobs.training.lesson_plan import (
    QUESTIONS,
    Lessons,
    Phase,
    StepLessons,
    TypeBalance,
    stream,
)
from jobs.training.lessons import Lesson, drawn_lesson, training_clip
from jobs.training.meanings import TOKENS, meanings
from jobs.training.packing import Packed, pack
from jobs.training.projector import fit_projector, patch_states
from jobs.training.recipe import (
    DRAWN,
    FRAME_BATCH,
    FRESH,
    PLATES,
    SEEN,
    Recipe,
)
from jobs.training.seen import SeenLesson, SeenTrainer
from jobs.training.stage import Figures, Report, Stage, run_stage
from jobs.training.vision import VisionTrainer
from tango_core.benchmarks.shapes.benchmark import render

LessonLoss = Callable[[StepLessons, Packed, int], tuple[Tensor, dict[int, list[bool]]]]


def train_vision(
    config: LlavaOnevisionConfig, recipe: Recipe, seed: int, directory: Path, report: Report
) -> VisionTrainer:
    """Teach the tower on labelled frames, in the end on more digits, which are the hardest."""
    torch.manual_seed(seed)
    trainer = VisionTrainer(config.vision_config)

    def teach(stage: Stage, seed: int, plates: float) -> None:
        run_stage(
            stage,
            trainer,
            lambda first, last: iter(frame_batches(seed, FRAME_BATCH, plates, first, last)),
            lambda batch, step: trainer.loss(batch),
            directory,
            report,
        )

    teach(recipe.vision, seed, 0.0)
    teach(recipe.digits, seed + FRESH, PLATES)
    teach(recipe.again, seed + 2 * FRESH, PLATES)
    return trainer


def train_drawn(
    config: LlavaOnevisionConfig, recipe: Recipe, seed: int, directory: Path, report: Report
) -> DecoderTrainer:
    """Teach the decoder on tokens drawn from descriptions of clips."""
    torch.manual_seed(seed)
    trainer = DecoderTrainer(config)
    noise = torch.Generator()

    def loss_of(lessons: StepLessons, packed: Packed, step: int) -> Any:
        noise.manual_seed(seed * 1_000_003 + step)
        mixtures = [torch.from_numpy(one.visual) for one in lessons.lessons]
        return trainer.loss(drawn_tokens(trainer.meaning, mixtures, noise), packed)

    _teach(recipe.drawn, DRAWN, trainer, drawn_lesson, loss_of, seed, directory, report)
    return trainer


def train_seen(
    config: LlavaOnevisionConfig,
    recipe: Recipe,
    vision: VisionTrainer,
    decoder: DecoderTrainer,
    seed: int,
    directory: Path,
    report: Report,
) -> SeenTrainer:
    """Fit the projector, then teach projector and decoder on real frames."""
    vision.requires_grad_(False)
    torch.manual_seed(seed)
    states, targets = _fitting_frames(vision, decoder, seed, recipe.fit_frames)
    projector, explained = fit_projector(config, vision, states, targets)
    report("projector", 1, 1, {"explained": explained})
    trainer = SeenTrainer(projector, decoder)

    def loss_of(lessons: StepLessons, packed: Packed, step: int) -> Any:
        return trainer.loss(lessons.lessons, packed)

    # Clips that no earlier stage has drawn.
    fresh = seed + FRESH
    _teach(recipe.seen, SEEN, trainer, SeenLesson(vision), loss_of, fresh, directory, report)
    return trainer


@torch.no_grad()
def _fitting_frames(
    vision: VisionTrainer, decoder: DecoderTrainer, seed: int, number: int
) -> tuple[Tensor, Tensor]:
    """States of frames, and the tokens that they should become."""
    states, targets = [], []
    for index in range(number):
        clip, moments = training_clip(seed + 3 * FRESH, index, 1)
        states.append(patch_states(vision, torch.from_numpy(render(clip, moments))))
        targets.append(torch.from_numpy(meanings(clip, moments)) @ decoder.meaning)
    return torch.cat(states), torch.stack(targets)


def _teach(
    stage: Stage,
    plan: tuple[Phase, ...],
    trainer: nn.Module,
    lesson_of: Callable[[int, int, int], Lesson],
    loss_of: LessonLoss,
    seed: int,
    directory: Path,
    report: Report,
) -> None:
    """Run a stage of questions about clips."""
    state: dict[str, Any] = {"known": {}}

    def step_loss(lessons: StepLessons, step: int) -> tuple[Tensor, Figures]:
        balance = TypeBalance(state, lessons.kinds)
        rng = np.random.default_rng((seed, step, 2))
        packed = pack(
            [_asked(lessons, one, balance, rng) for one in lessons.lessons],
            lessons.num_frames * TOKENS,
            lessons.pitch,
        )
        loss, by_kind = loss_of(lessons, packed, step)
        balance.update(by_kind)
        return loss, figures_of(by_kind)

    def batches(first: int, last: int) -> Any:
        return stream(Lessons(plan, lesson_of, seed, stage.steps, first, last))

    run_stage(stage, trainer, batches, step_loss, directory, report, state)


def _asked(
    lessons: StepLessons, lesson: Lesson, balance: TypeBalance, rng: np.random.Generator
) -> list[tuple[int, tuple[int, ...], tuple[int, ...]]]:
    """Choose a clip's questions, some of them without options."""
    asked = []
    for one in balance.choose(lesson, QUESTIONS[lessons.num_frames], rng):
        if one.open_prompts and rng.random() < lessons.openly:
            prompt = one.open_prompts[int(rng.integers(len(one.open_prompts)))]
            asked.append((one.kind, prompt, one.open_reply))
        else:
            asked.append((one.kind, one.prompt, one.reply))
    return asked
