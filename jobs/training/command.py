"""From nothing to the embedded model: `tango train-tiny`.

Three stages. The vision tower learns to say what is in every patch of single frames; the decoder
learns to answer from tokens drawn from descriptions of clips; then the projector is fitted to
produce such tokens, and projector and decoder learn together on real frames. Only the training
split is seen. No token is ever dropped, and no pruning method is run.
"""

from __future__ import annotations

import json
import logging
import time
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path

import torch
from rich.console import Console

from jobs.training.assemble import assemble, save
from jobs.training.card import write_card
from jobs.training.course import train_drawn, train_seen, train_vision
from jobs.training.display import StageDisplay
from jobs.training.recipe import MINUTES, Recipe, architecture, recipe_for
from jobs.training.tracking import TRIALS, track_training
from jobs.training.trial import Trial, read_trials, try_model, write_trials

logger = logging.getLogger(__name__)

TRAINING = "training"
RECORD = "training.json"
TRIED = ((0, 8), (0, 16), (1, 8))
"""Draws of the held-out clips, and frames of each; the first pair is the card's table."""


def train_tiny(
    output: Path,
    *,
    seed: int = 0,
    minutes: float = MINUTES,
    resume: bool = False,
    clips: int = 200,
    beside: Sequence[Path] = (),
    recipe: Recipe | None = None,
    tracking_uri: str | None = None,
    console: Console | None = None,
) -> Trial:
    """Train the embedded model and write its directory.

    Args:
        output: Receives the checkpoint, its card, and `training/` with what resuming needs.
        seed: Decides everything that is drawn.
        minutes: Time to aim at on two free cores; less than the full recipe shortens all stages.
        resume: Go on from the checkpoints in `output`; seed and minutes must be the same.
        clips: Held-out clips for the card, up to 200.
        beside: Finished trainings with other seeds, whose accuracy the card shows too.
        recipe: Lengths of the stages; `None` for those that fit `minutes`.
        tracking_uri: MLflow store; `None` for SQLite in `output`.
        console: Where progress is shown.

    Returns:
        The accuracy that the card reports.

    Raises:
        ValueError: If an option is out of range, `output` holds a training that is not to be
            resumed, or one with other options; if one of `beside` has another recipe.
        FileNotFoundError: If one of `beside` holds no finished training.
    """
    chosen = recipe or recipe_for(minutes)
    directory = output / TRAINING
    others = [_finished(other, chosen) for other in beside]
    _open(directory, {"seed": seed, **asdict(chosen)}, resume)
    # One thread and one process that prepares the next batches: two cores, equal results.
    torch.set_num_threads(1)
    config = architecture()
    started = time.monotonic()
    with StageDisplay(console or Console()) as display:
        vision = train_vision(config, chosen, seed, directory, display.report)
        decoder = train_drawn(config, chosen, seed, directory, display.report)
        seen = train_seen(config, chosen, vision, decoder, seed, directory, display.report)
    save(assemble(config, vision, seen.projector, seen.decoder), output)
    spent = (time.monotonic() - started) / 60
    logger.info("trained in %.1f minutes; asking about held-out clips", spent)
    trials = [
        try_model(output, directory / "clips", clips=clips, num_frames=num_frames, seed=draw)
        for draw, num_frames in TRIED
    ]
    write_trials(trials, directory / TRIALS)
    write_card(output, trials, [(seed, trials[0]), *others], chosen)
    track_training(output, tracking_uri)
    return trials[0]


def _finished(output: Path, recipe: Recipe) -> tuple[int, Trial]:
    """Seed and accuracy of a training that ran before, with the same recipe."""
    directory = output / TRAINING
    if not (directory / TRIALS).is_file():
        raise FileNotFoundError(f"--beside: {output} holds no finished training")
    record = json.loads((directory / RECORD).read_text())
    seed = int(record.pop("seed"))
    if record != json.loads(json.dumps(asdict(recipe))):
        raise ValueError(f"--beside: {output} was trained with another recipe or --minutes")
    return seed, read_trials(directory / TRIALS)[0]


def _open(directory: Path, options: dict[str, object], resume: bool) -> None:
    """Make the training's directory, or check that it is the one to go on with."""
    record = directory / RECORD
    # Through JSON, so that it compares with what is read back.
    options = json.loads(json.dumps(options))
    if record.is_file():
        if not resume:
            raise ValueError(
                f"--output {directory.parent} holds a training; continue it with --resume, "
                "or choose another directory"
            )
        before = json.loads(record.read_text())
        changed = sorted(key for key in options if before.get(key) != options[key])
        if changed:
            raise ValueError(
                f"--resume: {directory.parent} was started with another {', '.join(changed)}; "
                "use the same --seed and --minutes, or another --output"
            )
        return
    directory.mkdir(parents=True, exist_ok=True)
    record.write_text(json.dumps(options, indent=2) + "\n")
