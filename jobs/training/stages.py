"""The stages of a training: which part of the model is trained on which samples."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from jobs.training.curriculum import (
    QUESTIONS_PER_CLIP,
    CurriculumDataset,
    MakeSample,
    Phase,
    QuestionSampler,
    StepSamples,
)
from jobs.training.frames import Batch, FrameBatches
from jobs.training.joint import JointTrainer, RenderedSamples
from jobs.training.language import LanguageTrainer, accuracy_by_type, synthetic_tokens
from jobs.training.loop import Metrics, ReportProgress, Stage, run_stage
from jobs.training.packing import Packed, PromptAndReply, pack
from jobs.training.projector import fit_projector, patch_states
from jobs.training.recipe import (
    DIGIT_SHARE,
    FRAME_BATCH,
    JOINT_PHASES,
    LANGUAGE_PHASES,
    SEED_OFFSET,
    Recipe,
    architecture,
)
from jobs.training.samples import (
    TOKENS_PER_FRAME,
    Sample,
    synthetic_sample,
    token_targets,
    training_clip,
)
from jobs.training.vision import VisionTrainer
from tango_core.benchmarks.shapes.render import render

SamplesLoss = Callable[[StepSamples, Packed, int], tuple[Tensor, dict[int, list[bool]]]]
"""Loss of (samples, packed questions, step), and by type which questions were answered right."""


@dataclass(frozen=True)
class Training:
    """One training of the whole model.

    Every stage starts from its checkpoint in `directory` if there is one.

    Attributes:
        recipe: Lengths of the stages.
        seed: Seed of everything that is random.
        directory: Holds checkpoints and logs.
        report: Called with the progress of a stage.
    """

    recipe: Recipe
    seed: int
    directory: Path
    report: ReportProgress

    def vision(self) -> VisionTrainer:
        """Train the tower on labelled frames, in the end with more digits, the hardest objects."""
        torch.manual_seed(self.seed)
        trainer = VisionTrainer(architecture().vision_config)
        self._on_frames(self.recipe.vision, trainer, self.seed, 0.0)
        self._on_frames(self.recipe.vision_digits, trainer, self.seed + SEED_OFFSET, DIGIT_SHARE)
        self._on_frames(
            self.recipe.vision_repeat, trainer, self.seed + 2 * SEED_OFFSET, DIGIT_SHARE
        )
        return trainer

    def language(self) -> LanguageTrainer:
        """Train the language model on synthetic tokens."""
        torch.manual_seed(self.seed)
        trainer = LanguageTrainer(architecture())
        noise = torch.Generator()

        def loss_of(batch: StepSamples, packed: Packed, step: int) -> Any:
            noise.manual_seed(self.seed * 1_000_003 + step)
            weights = [torch.from_numpy(sample.visual) for sample in batch.samples]
            return trainer.loss(synthetic_tokens(trainer.meaning, weights, noise), packed)

        stage = self.recipe.language
        self._on_questions(stage, LANGUAGE_PHASES, trainer, synthetic_sample, loss_of, self.seed)
        return trainer

    def joint(self, vision: VisionTrainer, language: LanguageTrainer) -> JointTrainer:
        """Fit the projector, then train projector and language model on rendered frames."""
        vision.requires_grad_(False)
        torch.manual_seed(self.seed)
        states, targets = self._fitting_frames(vision, language)
        projector, explained = fit_projector(architecture(), vision, states, targets)
        self.report("projector", 1, 1, {"explained": explained})
        trainer = JointTrainer(projector, language)

        def loss_of(batch: StepSamples, packed: Packed, step: int) -> Any:
            return trainer.loss(batch.samples, packed)

        # Other clips than those of the language stage.
        seed = self.seed + SEED_OFFSET
        make_sample = RenderedSamples(vision)
        self._on_questions(self.recipe.joint, JOINT_PHASES, trainer, make_sample, loss_of, seed)
        return trainer

    def _on_frames(self, stage: Stage, trainer: VisionTrainer, seed: int, plates: float) -> None:
        """Run a stage on labelled frames."""

        def loss_of(batch: Batch, step: int) -> tuple[Tensor, Metrics]:
            return trainer.loss(batch)

        batches = FrameBatches(seed, FRAME_BATCH, plates)
        run_stage(stage, trainer, batches, loss_of, self.directory, self.report)

    def _on_questions(
        self,
        stage: Stage,
        phases: tuple[Phase, ...],
        trainer: nn.Module,
        make_sample: MakeSample,
        loss_of: SamplesLoss,
        seed: int,
    ) -> None:
        """Run a stage on questions about clips."""
        state: dict[str, Any] = {"known": {}}

        def step_loss(batch: StepSamples, step: int) -> tuple[Tensor, Metrics]:
            sampler = QuestionSampler(state, batch.kinds)
            rng = np.random.default_rng((seed, step, 2))
            packed = pack(
                [_choose(batch, sample, sampler, rng) for sample in batch.samples],
                batch.num_frames * TOKENS_PER_FRAME,
                batch.increment,
            )
            loss, by_kind = loss_of(batch, packed, step)
            sampler.update(by_kind)
            return loss, accuracy_by_type(by_kind)

        batches = CurriculumDataset(phases, make_sample, seed, stage.steps)
        run_stage(stage, trainer, batches, step_loss, self.directory, self.report, state)

    @torch.no_grad()
    def _fitting_frames(
        self, vision: VisionTrainer, language: LanguageTrainer
    ) -> tuple[Tensor, Tensor]:
        """States of frames, and the tokens that the projector should make of them."""
        states, targets = [], []
        for index in range(self.recipe.fit_frames):
            clip, moments = training_clip(self.seed + 3 * SEED_OFFSET, index, 1)
            states.append(patch_states(vision, torch.from_numpy(render(clip, moments))))
            targets.append(torch.from_numpy(token_targets(clip, moments)) @ language.meaning)
        return torch.cat(states), torch.stack(targets)


def _choose(
    batch: StepSamples, sample: Sample, sampler: QuestionSampler, rng: np.random.Generator
) -> list[PromptAndReply]:
    """Choose a clip's questions, some of them without options."""
    chosen = []
    for one in sampler.choose(sample, QUESTIONS_PER_CLIP[batch.num_frames], rng):
        if one.open_prompts and rng.random() < batch.open_share:
            prompt = one.open_prompts[int(rng.integers(len(one.open_prompts)))]
            chosen.append((one.kind, prompt, one.open_reply))
        else:
            chosen.append((one.kind, one.prompt, one.reply))
    return chosen
