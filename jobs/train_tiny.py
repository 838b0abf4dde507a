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
from dataclasses import asdict
from pathlib import Path

import torch
from rich.console import Console

from jobs.tiny_training.assemble import assemble, save
from jobs.tiny_training.card import write_card
from jobs.tiny_training.course import train_drawn, train_seen, train_vision
from jobs.tiny_training.display import StageDisplay
from jobs.tiny_training.recipe import MINUTES, Recipe, architecture, recipe_for
from jobs.tiny_training.tracking import track_training
from jobs.tiny_training.trial import Trial, try_model

logger = logging.getLogger(__name__)

TRAINING = "training"
RECORD = "training.json"


def train_tiny(
    output: Path,
    *,
    seed: int = 0,
    minutes: float = MINUTES,
    resume: bool = False,
    clips: int = 200,
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
        recipe: Lengths of the stages; `None` for those that fit `minutes`.
        tracking_uri: MLflow store; `None` for SQLite in `output`.
        console: Where progress is shown.

    Returns:
        The accuracy that the card reports.

    Raises:
        ValueError: If an option is out of range, `output` holds a training that is not to be
            resumed, or one with other options.
    """
    chosen = recipe or recipe_for(minutes)
    directory = output / TRAINING
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
    logger.info("trained in %.1f minutes; asking about %d held-out clips", spent, clips)
    trial = try_model(output, directory / "clips", clips=clips)
    (directory / "trial.json").write_text(json.dumps(asdict(trial), indent=2) + "\n")
    write_card(output, [(seed, trial)], chosen)
    track_training(output, tracking_uri)
    return trial


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
