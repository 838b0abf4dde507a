"""The upload of a finished run in a process of its own, which never costs a result.

A server that accepts connections and then stays silent can hold MLflow's client for many minutes.
"""

from __future__ import annotations

import logging
import os
import subprocess
import sys
from collections.abc import Callable, Sequence

from jobs.tracking.log_run import log_run
from jobs.tracking.server import TrackingError, default_tracking_uri, first_line
from pipeline.redaction import redacted
from pipeline.remote.urls import Place, place

logger = logging.getLogger(__name__)

# Command and time limit in seconds -> what the finished process printed, or `TimeoutExpired`.
ProcessRunner = Callable[[Sequence[str], float], "subprocess.CompletedProcess[str]"]


def run_process(command: Sequence[str], timeout_s: float) -> subprocess.CompletedProcess[str]:
    """Run a Python process that finds this process's packages, and wait for it.

    Raises:
        subprocess.TimeoutExpired: If it takes longer; it is killed then.
    """
    environment = {
        **os.environ,
        "PYTHONPATH": os.pathsep.join(path or os.getcwd() for path in sys.path),
        "MLFLOW_DISABLE_TELEMETRY": "true",
    }
    return subprocess.run(
        command, env=environment, capture_output=True, text=True, timeout=timeout_s, check=False
    )


def track_run(
    run_dir: Place,
    tracking_uri: str | None = None,
    *,
    timeout_s: float = 600.0,
    run: ProcessRunner = run_process,
) -> str | None:
    """Upload a finished run and never fail: what goes wrong becomes one warning.

    Args:
        run_dir: A finished run.
        tracking_uri: Where to log; `None` for the SQLite store beside the run.
        timeout_s: Time limit of the upload.
        run: Runs the process that uploads.

    Returns:
        The MLflow run id, or `None` if the run was not (completely) uploaded.
    """
    uri = tracking_uri or default_tracking_uri(run_dir.parent)
    command = [sys.executable, "-m", "jobs.tracking.upload", str(run_dir), uri]
    try:
        done = run(command, timeout_s)
    except subprocess.TimeoutExpired:
        reason = f"no answer within {timeout_s:g} s"
    else:
        if done.returncode == 0:
            return done.stdout.strip().splitlines()[-1]
        reason = (done.stderr.strip().splitlines() or ["no reason given"])[-1]
    logger.warning(
        "not logged to MLflow at %s (%s); the results are in %s, upload them with "
        "`tango log-run %s --tracking-uri %s`",
        redacted(uri),
        redacted(reason),
        run_dir,
        run_dir,
        redacted(uri),
    )
    return None


def main(arguments: Sequence[str]) -> int:
    """Upload one run in this process and print its MLflow id: `python -m jobs.tracking.upload`."""
    try:
        print(log_run(place(arguments[0]), arguments[1]))
    except (TrackingError, FileNotFoundError, ValueError) as error:
        print(first_line(error), file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
