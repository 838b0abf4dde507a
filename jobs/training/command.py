"""`tango train-tiny`: train the built-in model from random weights.

First the vision tower is trained on labelled frames. Then the language model is trained on
synthetic tokens, which are computed from descriptions of clips. Last the projector is fitted to
produce such tokens, and projector and language model are trained together on rendered frames.
Only the training split is used, no token is dropped, and no pruning method is run.
"""

from __future__ import annotations

import json
import logging
import math
import os
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace
from functools import partial
from pathlib import Path
from statistics import fmean
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, Dataset

from jobs.training import data, model
from tango_core.benchmarks.shapes.questions import ASKED, VOCABULARY
from tango_core.benchmarks.shapes.render import render
from tango_core.errors import InputError
from tango_core.models.tiny import save_tiny, tiny_config

logger = logging.getLogger(__name__)

# Folder below `--output` with the files for resuming; one of them is the record of seed and recipe.
TRAINING, OPTIONS = "training", "training.json"
# Maximum number of prefetched batches.
_PREPARED = 8
FRAME_BATCH = 12
"""Frames per step of the vision stages; larger batches learn less per minute on a CPU."""
DIGIT_SHARE = 0.6
"""Share of the icons of dense frames that are replaced by digits, from the second stage on."""
SEED_OFFSET = 1_000_000
"""Added to the seed for clips that no earlier stage has used."""
MINUTES = 90.0
"""Longest time of the full recipe on two free cores."""
ARCHITECTURE = tiny_config(len(VOCABULARY))
"""Configuration of the built-in model, including its vocabulary size."""

_ALL_KINDS = (*ASKED, "object", "count")
LANGUAGE_PHASES = (
    data.Phase(0.20, {1: 1.0}, open_share=0.75, kinds=_ALL_KINDS),
    data.Phase(0.50, {1: 0.15, 2: 0.85}, open_share=0.4, kinds=_ALL_KINDS),
    data.Phase(0.70, {1: 0.1, 2: 0.3, 4: 0.6}, open_share=0.3, kinds=_ALL_KINDS),
    data.Phase(1.00, {1: 0.1, 2: 0.1, 4: 0.3, 8: 0.5}, open_share=0.25, kinds=_ALL_KINDS),
)
"""Curriculum on synthetic tokens, from single frames without options to longer clips.

The order of scenes is learned from two frames; from four or more it takes several times as long.
"""
JOINT_PHASES = (
    data.Phase(0.35, {1: 0.3, 2: 0.1, 4: 0.4, 8: 0.2}, open_share=0.1, kinds=ASKED),
    data.Phase(1.00, {1: 0.1, 4: 0.2, 8: 0.6, 16: 0.1}, open_share=0.0, kinds=ASKED),
)
"""Curriculum on rendered frames, with the types of questions that the benchmark asks."""


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

    def learning_rate(self, step: int) -> float:
        """Learning rate of a step."""
        if step < self.warmup:
            return self.rate * (step + 1) / self.warmup
        progress = (step - self.warmup) / max(1, self.steps - self.warmup)
        return self.rate * (0.03 + 0.97 * (1 + math.cos(math.pi * min(1.0, progress))) / 2)


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


def train_tiny(
    output: Path,
    *,
    seed: int = 0,
    minutes: float = MINUTES,
    resume: bool = False,
    recipe: Recipe | None = None,
) -> None:
    """Train the built-in model and write its directory.

    Args:
        output: Directory of the checkpoint, and of `training/` with the files for resuming.
        seed: Random seed.
        minutes: Planned time on two free cores; less than the full recipe needs shortens all
            stages.
        resume: Continue from the checkpoints in `output`; seed and minutes must be the same.
        recipe: Lengths of the stages; `None` for the full recipe, shortened to `minutes`.

    Raises:
        ValueError: If an option is out of range, or if `output` holds a training and `resume` is
            not set or the options differ.
    """
    chosen, directory = recipe or recipe_for(minutes), output / TRAINING
    options: dict[str, Any] = {"seed": seed, "fit_frames": chosen.fit_frames}
    options |= {stage.name: asdict(stage) for stage in chosen.stages}
    if (directory / OPTIONS).is_file():
        if not resume:
            raise InputError(
                f"--output {output} holds a training; continue it with --resume, "
                "or choose another directory"
            )
        before = json.loads((directory / OPTIONS).read_text())
        changed = sorted(key for key in options if before.get(key) != options[key])
        if changed:
            raise InputError(
                f"--resume: {output} was started with another {', '.join(changed)}; "
                "use the same --seed and --minutes, or another --output"
            )
    else:
        directory.mkdir(parents=True, exist_ok=True)
        (directory / OPTIONS).write_text(json.dumps(options, indent=2) + "\n")
    # One thread here and one process that prepares batches use two cores; more threads would
    # change the order of sums, and with it the weights.
    torch.set_num_threads(1)
    training = Training(chosen, seed, directory)
    vision, language = training.vision(), training.language()
    projector = training.joint(vision, language)
    save_tiny(model.assemble(ARCHITECTURE, vision, projector, language), VOCABULARY, output)


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

    def vision(self) -> model.VisionTrainer:
        """Train the tower on labelled frames, finally with more digits, the hardest objects."""
        torch.manual_seed(self.seed)
        trainer = model.VisionTrainer(ARCHITECTURE.vision_config)
        for number, stage in enumerate(self.recipe.stages[:3]):
            seed, digits = self.seed + number * SEED_OFFSET, DIGIT_SHARE if number else 0.0
            batches = partial(data.frame_batch, seed, FRAME_BATCH, digits)
            self._run(stage, trainer, batches, lambda batch, _: trainer.loss(batch), {})
        return trainer

    def language(self) -> model.LanguageTrainer:
        """Train the language model on synthetic tokens."""
        torch.manual_seed(self.seed)
        trainer = model.LanguageTrainer(ARCHITECTURE)
        noise = torch.Generator()

        def tokens_of(samples: Sequence[data.Sample], step: int) -> Tensor:
            noise.manual_seed(self.seed * 1_000_003 + step)
            return model.synthetic_tokens(trainer.meaning, samples, noise)

        stage, make = self.recipe.stages[3], data.synthetic_sample
        self._on_questions(stage, LANGUAGE_PHASES, trainer, trainer, make, tokens_of, self.seed)
        return trainer

    def joint(self, vision: model.VisionTrainer, language: model.LanguageTrainer) -> nn.Module:
        """Fit the projector, then train it and the language model on rendered frames.

        Returns:
            The projector; the language model is trained in place.
        """
        vision.requires_grad_(False)
        torch.manual_seed(self.seed)
        states, targets = [], []
        with torch.no_grad():
            for index in range(self.recipe.fit_frames):
                clip, moments = data.training_clip(self.seed + 3 * SEED_OFFSET, index, 1)
                states.append(model.patch_states(vision, torch.from_numpy(render(clip, moments))))
                targets.append(
                    torch.from_numpy(data.token_targets(clip, moments)) @ language.meaning
                )
        projector: nn.Module = model.fit_projector(
            ARCHITECTURE, vision, torch.cat(states), torch.stack(targets)
        )
        both = nn.ModuleDict({"projector": projector, "decoder": language})

        def tokens_of(samples: Sequence[data.Sample], step: int) -> Tensor:
            return model.projected_tokens(projector, samples)

        # Different clips from those of the language stage.
        make, seed = partial(model.rendered_sample, vision), self.seed + SEED_OFFSET
        stage = self.recipe.stages[4]
        self._on_questions(stage, JOINT_PHASES, both, language, make, tokens_of, seed)
        return projector

    def _on_questions(
        self,
        stage: Stage,
        phases: tuple[data.Phase, ...],
        trained: nn.Module,
        language: model.LanguageTrainer,
        make_sample: data.MakeSample,
        tokens_of: Callable[[Sequence[data.Sample], int], Tensor],
        seed: int,
    ) -> None:
        """Run a stage on questions about clips."""
        accuracy: dict[str, float] = {}

        def loss_of(batch: data.StepSamples, step: int) -> Tensor:
            rng = np.random.default_rng((seed, step, 2))
            num_tokens = batch.num_frames * data.TOKENS_PER_FRAME
            packed = data.pack(
                data.choose_questions(batch, accuracy, rng), num_tokens, batch.increment
            )
            loss, right = language.loss(tokens_of(batch.samples, step), packed)
            kinds = torch.tensor(packed.kinds)
            for kind in set(packed.kinds):
                name, share = data.TYPE_NAMES[kind], float(right[kinds == kind].float().mean())
                accuracy[name] = 0.97 * accuracy.get(name, 0.0) + 0.03 * share
            return loss

        batches = partial(data.step_samples, phases, make_sample, seed, stage.steps)
        self._run(stage, trained, batches, loss_of, accuracy)

    def _run(
        self,
        stage: Stage,
        module: nn.Module,
        batches: Callable[[int], Any],
        loss_of: Callable[[Any, int], Tensor],
        accuracy: dict[str, float],
    ) -> None:
        """Train a module in place, from the last checkpoint of the stage if there is one.

        Args:
            stage: Length and learning rate.
            module: Module whose parameters with `requires_grad` are trained.
            batches: Makes the batch of a step, in another process.
            loss_of: Returns the loss of a batch at a step.
            accuracy: Values to save and restore, modified in place by `loss_of`.
        """
        path = self.directory / f"{stage.name}.pt"
        trained = [value for value in module.parameters() if value.requires_grad]
        groups = [
            {"params": [value for value in trained if value.ndim >= 2], "weight_decay": 0.05},
            {"params": [value for value in trained if value.ndim < 2], "weight_decay": 0.0},
        ]
        optimizer = torch.optim.AdamW(groups, lr=stage.rate, betas=(0.9, 0.98), fused=True)
        first = 0
        if path.is_file():
            saved = torch.load(path, weights_only=True)
            module.load_state_dict(saved["model"])
            optimizer.load_state_dict(saved["optimizer"])
            accuracy.update(saved["state"].get("known", {}))
            first = saved["step"]
        loader = DataLoader(
            _Batches(batches),
            batch_size=None,
            sampler=range(first, stage.steps),
            num_workers=1,
            prefetch_factor=_PREPARED,
        )
        module.train()
        losses: list[float] = []
        for step, batch in enumerate(loader, start=first):
            for group in optimizer.param_groups:
                group["lr"] = stage.learning_rate(step)
            loss = loss_of(batch, step)
            optimizer.zero_grad(set_to_none=True)
            loss.backward()  # type: ignore[no-untyped-call]
            nn.utils.clip_grad_norm_(module.parameters(), 1.0)
            optimizer.step()
            losses.append(float(loss.detach()))
            done = step + 1
            if done % stage.every == 0 or done == stage.steps:
                content = {
                    "model": module.state_dict(),
                    "optimizer": optimizer.state_dict(),
                    "state": {"known": accuracy},
                    "step": done,
                }
                torch.save(content, path.with_suffix(".tmp"))
                os.replace(path.with_suffix(".tmp"), path)
                mean = fmean(losses)
                logger.info("%s: step %d of %d, loss %.2f", stage.name, done, stage.steps, mean)
                losses.clear()
        module.eval()


@dataclass(frozen=True)
class _Batches(Dataset[Any]):
    """Batches by step."""

    make: Callable[[int], Any]

    def __getitem__(self, step: int) -> Any:
        return self.make(step)
