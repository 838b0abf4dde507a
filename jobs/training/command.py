"""`tango train-tiny`: train the embedded model from random weights.

First the vision tower is trained on labelled frames. Then the language model is trained on
synthetic tokens, which are computed from descriptions of clips. Last the projector is fitted to
produce such tokens, and projector and language model are trained together on rendered frames.
Only the training split is used, no token is dropped, and no pruning method is run.
"""

from __future__ import annotations

import json
import logging
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from rich.console import Console
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    TaskID,
    TextColumn,
    TimeElapsedColumn,
    TimeRemainingColumn,
)

from jobs.tracking.mlflow_runs import MlflowRuns
from jobs.tracking.server import (
    TrackingError,
    default_tracking_uri,
    experiment_id,
    mlflow_client,
    tracking_errors,
)
from jobs.tracking.shown import flatten
from jobs.training.card import write_card
from jobs.training.held_out import (
    Evaluation,
    evaluate_model,
    read_evaluations,
    write_evaluations,
)
from jobs.training.joint import assemble
from jobs.training.loop import Metrics, ReportProgress
from jobs.training.recipe import MINUTES, Recipe, architecture, recipe_for
from jobs.training.stages import Training
from tango_core.benchmarks.shapes.questions import VOCABULARY
from tango_core.models.tiny import save_tiny

logger = logging.getLogger(__name__)

# Below `--output`: all that resuming and the card need. In it: seed and recipe, without which a
# training is not resumed; accuracy on held-out clips; the video files of these clips.
TRAINING = "training"
OPTIONS, EVALUATIONS, CLIPS = "training.json", "trials.json", "clips"
EXPERIMENT = "tango-train-tiny"
_LOG_EVERY_S = 30.0

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
    tracking_uri: str | None = None,
    console: Console | None = None,
) -> Evaluation:
    """Train the embedded model and write its directory.

    Args:
        output: Directory of the checkpoint, its card, and `training/` with the files for resuming.
        seed: Seed of everything that is random.
        minutes: Planned time on two free cores; less than the full recipe takes shortens all
            stages.
        resume: Continue from the checkpoints in `output`; seed and minutes must be the same.
        clips: Held-out clips for the card, up to 200.
        beside: Finished trainings with other seeds, whose accuracy the card shows as well.
        recipe: Lengths of the stages; `None` for the full recipe, shortened to `minutes`.
        tracking_uri: MLflow store; `None` for SQLite in `output`.
        console: Where progress is shown.

    Returns:
        The accuracy that the card reports.

    Raises:
        ValueError: If an option is out of range; if `output` holds a training and `resume` is not
            set, or its options are others; if one of `beside` has another recipe.
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
    with show_progress(console or Console()) as report:
        training = Training(chosen, seed, directory, report)
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
    track_training(output, tracking_uri)
    return evaluations[0]


def _finished_training(output: Path, recipe: Recipe) -> tuple[int, Evaluation]:
    """Seed and accuracy of a finished training with the same recipe."""
    directory = output / TRAINING
    if not (directory / EVALUATIONS).is_file():
        raise FileNotFoundError(f"--beside: {output} holds no finished training")
    record = json.loads((directory / OPTIONS).read_text())
    seed = int(record.pop("seed"))
    if record != recipe.record():
        raise ValueError(f"--beside: {output} was trained with another recipe or --minutes")
    return seed, read_evaluations(directory / EVALUATIONS)[0]


def _start_or_resume(directory: Path, options: dict[str, Any], resume: bool) -> None:
    """Create the directory of a training, or check that it has the same options."""
    record = directory / OPTIONS
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


def track_training(output: Path, tracking_uri: str | None = None) -> str | None:
    """Log the options, the metrics of all steps, and the accuracy of a training to MLflow.

    Args:
        output: Directory that `train_tiny` wrote.
        tracking_uri: Where to log; `None` for the SQLite store in `output`.

    Returns:
        The MLflow run id, or `None` after a warning if logging failed.
    """
    uri = tracking_uri or default_tracking_uri(output)
    directory = output / TRAINING
    now = int(time.time() * 1000)
    try:
        with tracking_errors():
            client = mlflow_client(uri)
            root = (output.resolve() / "mlartifacts").as_uri()
            experiment = experiment_id(client, EXPERIMENT, uri, root)
            runs = MlflowRuns(client, experiment, output.name)
            made = client.create_run(experiment, run_name=output.name)
            run = str(made.info.run_id)
            logged = [(name, value, now, step) for name, value, step in points(directory)]
            options = flatten(json.loads((directory / OPTIONS).read_text()))
            runs.settings(made, options, [], logged)
            for path in (output / "README.md", directory / EVALUATIONS):
                client.log_artifact(run, str(path))
            client.set_terminated(run)
    except TrackingError as error:
        logger.warning("not logged to MLflow at %s (%s); the model is in %s", uri, error, output)
        return None
    return run


def points(directory: Path) -> Iterator[tuple[str, float, int]]:
    """Name, value and step of every metric, and the accuracies of the first evaluation."""
    for log in sorted(directory.glob("*.jsonl")):
        for line in log.read_text().splitlines():
            metrics: dict[str, float] = json.loads(line)
            step = int(metrics.pop("step"))
            for name, value in metrics.items():
                yield f"{log.stem}/{name}", value, step
    evaluation = read_evaluations(directory / EVALUATIONS)[0]
    yield "accuracy", evaluation.overall.value, 0
    for kind, accuracy in evaluation.by_type.items():
        yield f"accuracy/{kind}", accuracy.value, 0
    yield "saliency_on_objects", evaluation.saliency_share, 0
    yield "object_tokens", evaluation.object_share, 0


@contextmanager
def show_progress(console: Console) -> Iterator[ReportProgress]:
    """Show a progress bar per stage on a terminal; elsewhere log a line every 30 seconds.

    Args:
        console: Where the bars are shown.

    Yields:
        The function that the stages call with their progress.
    """
    bars = Progress(
        TextColumn("[bold]{task.fields[stage]:<9}[/bold]"),
        BarColumn(bar_width=24),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
        TextColumn("left"),
        TimeRemainingColumn(),
        TextColumn("{task.fields[metrics]}"),
        console=console,
        disable=not console.is_terminal,
    )
    tasks: dict[str, TaskID] = {}
    last_log = 0.0

    def report(stage: str, step: int, steps: int, metrics: Metrics) -> None:
        nonlocal last_log
        text = _text(metrics)
        if stage not in tasks:
            tasks[stage] = bars.add_task("", total=steps, stage=stage, metrics="")
        bars.update(tasks[stage], completed=step, metrics=text)
        now = time.monotonic()
        if not console.is_terminal and (step == steps or now - last_log > _LOG_EVERY_S):
            last_log = now
            logger.info("%s: step %d of %d, %s", stage, step, steps, text)

    with bars:
        yield report


def _text(metrics: Metrics) -> str:
    """Metrics in one line, without the losses of single heads."""
    return " ".join(
        f"{name.split('/')[-1]} {value:.2f}"
        for name, value in metrics.items()
        if not name.startswith("loss/")
    )
