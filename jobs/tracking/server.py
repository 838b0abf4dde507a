"""Address, client and reachability of the MLflow server or store."""

from __future__ import annotations

import os
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import urlparse
from urllib.request import getproxies

from pipeline.redaction import redacted
from pipeline.storage.urls import Place
from tango_core.errors import InputError

if TYPE_CHECKING:
    from mlflow import MlflowClient

_CONNECT_S = 5.0
# Defaults for MLflow's variables, unless the user sets them (MLflow would retry for minutes).
_SETTINGS = {
    "MLFLOW_HTTP_REQUEST_TIMEOUT": "20",
    "MLFLOW_DISABLE_TELEMETRY": "true",
    "MLFLOW_LOGGING_LEVEL": "WARNING",
    "MLFLOW_SUPPRESS_PRINTING_URL_TO_STDOUT": "true",
}


class TrackingError(OSError):
    """A run could not be uploaded; its run directory is not affected."""


def default_tracking_uri(output: Place) -> str:
    """The SQLite store in the output directory: `sqlite:///<output>/mlflow.db`.

    For runs in an object store it is the local `runs/mlflow.db`, because a database needs a disk;
    the files of its MLflow runs are in the object store.
    """
    folder = output if isinstance(output, Path) else Path("runs")
    return f"sqlite:///{folder.resolve() / 'mlflow.db'}"


def mlflow_client(tracking_uri: str) -> MlflowClient:
    """Create an MLflow client; imports MLflow.

    Raises:
        TrackingError: If no server listens at the address, or MLflow does not support the URI.
    """
    _raise_if_nothing_listens(tracking_uri)
    for name, value in _SETTINGS.items():
        os.environ.setdefault(name, value)
    # Retrying a request whose response was lost could create a second run; whole uploads are
    # retried instead.
    os.environ["MLFLOW_HTTP_REQUEST_MAX_RETRIES"] = "0"
    from mlflow import MlflowClient
    from mlflow.exceptions import MlflowException

    try:
        return MlflowClient(tracking_uri=tracking_uri)
    except MlflowException as error:
        raise TrackingError(
            f"--tracking-uri {redacted(tracking_uri)} cannot be opened ({first_line(error)}); "
            "use sqlite:///<path>/mlflow.db or the http address of a server"
        ) from error


def is_remote(tracking_uri: str) -> bool:
    """Whether the URI is a server, which also stores the runs' files."""
    return urlparse(tracking_uri).scheme in ("http", "https")


def raise_if_wrong(tracking_uri: str) -> None:
    """Check the URI without any request, so that a job can do so before it starts.

    Raises:
        InputError: If the URI is MLflow's retired file store, or its port is invalid.
    """
    try:
        parts = urlparse(tracking_uri)
        _ = parts.port
    except ValueError as error:
        raise InputError(f"tracking_uri {redacted(tracking_uri)!r}: {error}") from error
    if parts.scheme in ("", "file"):
        raise InputError(
            f"tracking_uri {tracking_uri!r} is MLflow's retired file store; "
            "use sqlite:///<path>/mlflow.db or the http address of a server"
        )


def _raise_if_nothing_listens(tracking_uri: str) -> None:
    """Check the connection without importing MLflow; skipped if a proxy is configured."""
    parts = urlparse(tracking_uri)
    if not is_remote(tracking_uri) or not parts.hostname or getproxies().get(parts.scheme):
        return
    port = parts.port or (443 if parts.scheme == "https" else 80)
    try:
        socket.create_connection((parts.hostname, port), timeout=_CONNECT_S).close()
    except OSError as error:
        raise TrackingError(
            f"no server listens at {parts.hostname}:{port} ({error}); "
            "start the server or change --tracking-uri"
        ) from error


def raise_if_unreachable(tracking_uri: str) -> bool:
    """Send one request to a server or store.

    Returns:
        `False` for a SQLite store that does not exist yet; it is created with the first run.

    Raises:
        TrackingError: If it does not respond, or has an incompatible version of MLflow.
        InputError: If the URI is MLflow's retired file store.
    """
    raise_if_wrong(tracking_uri)
    parts = urlparse(tracking_uri)
    if parts.scheme == "sqlite" and not Path(parts.path[1:]).is_file():
        return False
    with tracking_errors():
        mlflow_client(tracking_uri).search_experiments(max_results=1)
    return True


@contextmanager
def tracking_errors() -> Iterator[None]:
    """Convert MLflow's and network errors into `TrackingError` with a one-line message.

    Raises:
        TrackingError: Instead of MLflow's exceptions and `OSError`.
    """
    try:
        yield
    except TrackingError:
        raise
    except Exception as error:
        from mlflow.exceptions import MlflowException

        if not isinstance(error, (MlflowException, OSError)):
            raise
        raise TrackingError(f"{type(error).__name__}: {first_line(error)}") from error


def first_line(error: BaseException) -> str:
    """The first line of an error, truncated for a log."""
    return redacted((str(error).strip().splitlines() or [""])[0][:300])
