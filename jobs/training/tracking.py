"""From a finished training to MLflow; a store that is down never costs a model."""

from __future__ import annotations

import json
import logging
import time
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import urlparse

from jobs.tracking.server import default_tracking_uri
from jobs.tracking.values import flatten
from jobs.training.trial import read_trials

logger = logging.getLogger(__name__)

EXPERIMENT = "tango-train-tiny"
TRIALS = "trials.json"
"""File in the training's directory that holds what `try_model` found."""
_AT_ONCE = 1000


def track_training(output: Path, tracking_uri: str | None = None) -> str | None:
    """Log options, curves and final accuracy of a training.

    Args:
        output: What `train_tiny` wrote.
        tracking_uri: Where to log; `None` for the SQLite store in `output`.

    Returns:
        The MLflow run id, or `None` with a warning if it could not be logged.
    """
    uri = tracking_uri or default_tracking_uri(output)
    from mlflow import MlflowClient
    from mlflow.entities import Metric, Param
    from mlflow.exceptions import MlflowException

    directory = output / "training"
    try:
        client = MlflowClient(tracking_uri=uri)
        found = client.get_experiment_by_name(EXPERIMENT)
        local = urlparse(uri).scheme not in ("http", "https")
        root = (output.resolve() / "mlartifacts").as_uri() if local else None
        experiment = (
            found.experiment_id
            if found is not None
            else client.create_experiment(EXPERIMENT, artifact_location=root)
        )
        run = client.create_run(experiment, run_name=output.name).info.run_id
        options = flatten(json.loads((directory / "training.json").read_text()))
        now = int(time.time() * 1000)
        points = [Metric(name, value, now, step) for name, value, step in _points(directory)]
        client.log_batch(run, params=[Param(key, value) for key, value in options.items()])
        for start in range(0, len(points), _AT_ONCE):
            client.log_batch(run, metrics=points[start : start + _AT_ONCE])
        client.log_artifact(run, str(output / "README.md"))
        client.log_artifact(run, str(directory / TRIALS))
        client.set_terminated(run)
    except (MlflowException, OSError) as error:
        reason = str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__
        logger.warning("not logged to MLflow at %s (%s); the model is in %s", uri, reason, output)
        return None
    return str(run)


def _points(directory: Path) -> Iterator[tuple[str, float, int]]:
    """Every logged figure with its step, and the accuracies of the trial."""
    for log in sorted(directory.glob("*.jsonl")):
        for line in log.read_text().splitlines():
            figures: dict[str, float] = json.loads(line)
            step = int(figures.pop("step"))
            for name, value in figures.items():
                yield f"{log.stem}/{name}", value, step
    trial = read_trials(directory / TRIALS)[0]
    yield "accuracy", trial.overall.value, 0
    for kind, accuracy in trial.by_type.items():
        yield f"accuracy/{kind}", accuracy.value, 0
    yield "saliency_on_objects", trial.saliency_share, 0
    yield "object_tokens", trial.object_share, 0
