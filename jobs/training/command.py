"""`tango train-tiny`: train the built-in model from random weights.

First the vision tower is trained on labelled frames. Then the language model is trained on
synthetic tokens, which are computed from descriptions of clips. Last the projector is fitted to
produce such tokens, and projector and language model are trained together on rendered frames.
Only the training split is used, no token is dropped, and no pruning method is run.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import torch

from jobs.training.model import assemble
from jobs.training.stages import MINUTES, Recipe, Training, architecture, recipe_for
from tango_core.benchmarks.shapes.questions import VOCABULARY
from tango_core.errors import InputError
from tango_core.models.tiny import save_tiny

# Folder below `--output` with the files for resuming; one of them is the record of seed and recipe.
TRAINING, OPTIONS = "training", "training.json"


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
    chosen = recipe or recipe_for(minutes)
    directory = output / TRAINING
    _start_or_resume(directory, {"seed": seed, **chosen.record()}, resume)
    # One thread here and one process that prepares batches use two cores; more threads would
    # change the order of sums, and with it the weights.
    torch.set_num_threads(1)
    training = Training(chosen, seed, directory)
    vision = training.vision()
    joint = training.joint(vision, training.language())
    save_tiny(assemble(architecture(), vision, joint), VOCABULARY, output)


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
