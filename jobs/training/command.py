"""`tango train-tiny`: train the built-in model from random weights.

First the vision tower is trained on labelled frames. Then the language model is trained on
synthetic tokens, which are computed from descriptions of clips. Last the projector is fitted to
produce such tokens, and projector and language model are trained together on rendered frames.
Only the training split is used, no token is dropped, and no pruning method is run.
"""

from __future__ import annotations

import json
import logging
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch

from jobs.training.card import (
    Evaluation,
    evaluate_model,
    read_evaluations,
    write_card,
    write_evaluations,
)
from jobs.training.model import assemble
from jobs.training.stages import MINUTES, Metrics, Recipe, Training, architecture, recipe_for
from tango_core.benchmarks.shapes.questions import VOCABULARY
from tango_core.errors import InputError, MissingFileError
from tango_core.models.tiny import save_tiny

logger = logging.getLogger(__name__)

# Folder below `--output` with everything that resuming and the card need, and files and folders in
# it: seed and recipe (required for resuming), accuracy on held-out clips, video files of these
# clips.
TRAINING = "training"
OPTIONS, EVALUATIONS, CLIPS = "training.json", "trials.json", "clips"

HELD_OUT = ((0, 8), (0, 16), (1, 8))
"""Seed and number of frames of every evaluation; the first one is the card's table."""


def train_tiny(
    output: Path,
    *,
    seed: int = 0,
    minutes: float = MINUTES,
    resume: bool = False,
    clips: int = 200,
    beside: Sequence[Path] = (),
    recipe: Recipe | None = None,
) -> Evaluation:
    """Train the built-in model and write its directory.

    Args:
        output: Directory of the checkpoint, its card, and `training/` with the files for resuming.
        seed: Random seed.
        minutes: Planned time on two free cores; less than the full recipe needs shortens all
            stages.
        resume: Continue from the checkpoints in `output`; seed and minutes must be the same.
        clips: Number of held-out clips for the card, up to 200.
        beside: Finished trainings with other seeds, whose accuracy the card also shows.
        recipe: Lengths of the stages; `None` for the full recipe, shortened to `minutes`.

    Returns:
        The evaluation that the card reports.

    Raises:
        ValueError: If an option is out of range; if `output` holds a training and `resume` is not
            set or the options differ; if one of `beside` has another recipe.
        FileNotFoundError: If one of `beside` is not a finished training.
    """
    chosen = recipe or recipe_for(minutes)
    directory = output / TRAINING
    others = [_finished_training(other, chosen) for other in beside]
    _start_or_resume(directory, {"seed": seed, **chosen.record()}, resume)
    # One thread here and one process that prepares batches use two cores; more threads would
    # change the order of sums, and with it the weights.
    torch.set_num_threads(1)
    started = time.monotonic()
    training = Training(chosen, seed, directory, _report)
    vision = training.vision()
    joint = training.joint(vision, training.language())
    save_tiny(assemble(architecture(), vision, joint), VOCABULARY, output)
    spent = (time.monotonic() - started) / 60
    logger.info("trained in %.1f minutes; evaluating on held-out clips", spent)
    evaluations = [
        evaluate_model(
            output, directory / CLIPS, clips=clips, num_frames=num_frames, seed=clip_seed
        )
        for clip_seed, num_frames in HELD_OUT
    ]
    write_evaluations(evaluations, directory / EVALUATIONS)
    write_card(output, evaluations, [(seed, evaluations[0]), *others], chosen)
    return evaluations[0]


def _finished_training(output: Path, recipe: Recipe) -> tuple[int, Evaluation]:
    """Seed and accuracy of a finished training with the same recipe."""
    directory = output / TRAINING
    if not (directory / EVALUATIONS).is_file():
        raise MissingFileError(f"--beside: {output} holds no finished training")
    record = json.loads((directory / OPTIONS).read_text())
    seed = int(record.pop("seed"))
    if record != recipe.record():
        raise InputError(f"--beside: {output} was trained with another recipe or --minutes")
    return seed, read_evaluations(directory / EVALUATIONS)[0]


def _start_or_resume(directory: Path, options: dict[str, Any], resume: bool) -> None:
    """Create the directory of a training, or check that it has the same options."""
    record = directory / OPTIONS
    if record.is_file():
        if not resume:
            raise InputError(
                f"--output {directory.parent} holds a training; continue it with --resume, "
                "or choose another directory"
            )
        before = json.loads(record.read_text())
        changed = sorted(key for key in options if before.get(key) != options[key])
        if changed:
            raise InputError(
                f"--resume: {directory.parent} was started with another {', '.join(changed)}; "
                "use the same --seed and --minutes, or another --output"
            )
        return
    directory.mkdir(parents=True, exist_ok=True)
    record.write_text(json.dumps(options, indent=2) + "\n")


def _report(stage: str, step: int, steps: int, metrics: Metrics) -> None:
    """Log the progress of a stage, without the losses of individual heads."""
    shown = (
        f"{name.split('/')[-1]} {value:.2f}"
        for name, value in metrics.items()
        if not name.startswith("loss/")
    )
    logger.info("%s: step %d of %d, %s", stage, step, steps, " ".join(shown))
