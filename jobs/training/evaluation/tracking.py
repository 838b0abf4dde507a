"""Log a finished training to MLflow; if that fails, the training still succeeds."""

from __future__ import annotations

import json
import logging
import time
from collections.abc import Iterator
from pathlib import Path

from jobs.tracking.server import default_tracking_uri, experiment_id, mlflow_client
from jobs.tracking.shown import flatten
from jobs.training.evaluation.held_out import read_evaluations
from jobs.training.files import CARD, EVALUATIONS, OPTIONS, TRAINING

logger = logging.getLogger(__name__)

EXPERIMENT = "tango-train-tiny"
_METRICS_PER_REQUEST = 1000
"""The most that MLflow accepts."""


def track_training(output: Path, tracking_uri: str | None = None) -> str | None:
    """Log the options, the metrics of all steps, and the accuracy of a training.

    Args:
        output: Directory that `train_tiny` wrote.
        tracking_uri: Where to log; `None` for the SQLite store in `output`.

    Returns:
        The MLflow run id, or `None` after a warning if logging failed.
    """
    uri = tracking_uri or default_tracking_uri(output)
    from mlflow.entities import Metric, Param
    from mlflow.exceptions import MlflowException

    directory = output / TRAINING
    try:
        client = mlflow_client(uri)
        artifact_root = (output.resolve() / "mlartifacts").as_uri()
        experiment = experiment_id(client, EXPERIMENT, uri, artifact_root)
        run = client.create_run(experiment, run_name=output.name).info.run_id
        options = flatten(json.loads((directory / OPTIONS).read_text()))
        now = int(time.time() * 1000)
        points = [Metric(name, value, now, step) for name, value, step in _points(directory)]
        client.log_batch(run, params=[Param(key, value) for key, value in options.items()])
        for start in range(0, len(points), _METRICS_PER_REQUEST):
            client.log_batch(run, metrics=points[start : start + _METRICS_PER_REQUEST])
        client.log_artifact(run, str(output / CARD))
        client.log_artifact(run, str(directory / EVALUATIONS))
        client.set_terminated(run)
    except (MlflowException, OSError) as error:
        reason = str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__
        logger.warning("not logged to MLflow at %s (%s); the model is in %s", uri, reason, output)
        return None
    return str(run)


def _points(directory: Path) -> Iterator[tuple[str, float, int]]:
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
