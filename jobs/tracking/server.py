"""The tracking server or store: its address, its client, and whether it answers."""

from __future__ import annotations

import os
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import urlparse
from urllib.request import getproxies

from pipeline.redaction import redacted
from pipeline.storage.urls import Place
from tango_core.errors import InputError

if TYPE_CHECKING:
    from mlflow import MlflowClient

_CONNECT_S = 5.0
# MLflow's own patience is 120 s and seven attempts. A user's choice stays.
_SETTINGS = {
    "MLFLOW_HTTP_REQUEST_TIMEOUT": "20",
    "MLFLOW_DISABLE_TELEMETRY": "true",
    "MLFLOW_LOGGING_LEVEL": "WARNING",
    "MLFLOW_SUPPRESS_PRINTING_URL_TO_STDOUT": "true",
}


class TrackingError(OSError):
    """A run could not be uploaded; its directory is complete all the same."""


def default_tracking_uri(output: Place) -> str:
    """The SQLite store beside the runs: `sqlite:///<output>/mlflow.db`.

    A database needs a disk: for runs in an object store it is `runs/mlflow.db` of this machine,
    and only the files of its runs are in the store.
    """
    folder = output if isinstance(output, Path) else Path("runs")
    return f"sqlite:///{folder.resolve() / 'mlflow.db'}"


def mlflow_client(tracking_uri: str) -> MlflowClient:
    """MLflow's own client; the library is imported when something is logged, not before.

    Raises:
        TrackingError: If nothing listens at the address, or MLflow has no store for it.
    """
    _raise_if_nothing_listens(tracking_uri)
    for name, value in _SETTINGS.items():
        os.environ.setdefault(name, value)
    # A request whose answer was lost would make a second run; uploads are repeated as a whole.
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
    """Whether runs are sent to a server, which keeps their files too."""
    return urlparse(tracking_uri).scheme in ("http", "https")


def raise_if_wrong(tracking_uri: str) -> None:
    """Refuse the file store and impossible ports; costs nothing, so a job can ask before it starts.

    Raises:
        ValueError: If the URI names MLflow's retired file store, or its port is no number or none
            that there is.
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
    """Find out before MLflow is imported; behind a proxy only its client can find out."""
    parts = urlparse(tracking_uri)
    if not is_remote(tracking_uri) or not parts.hostname or getproxies().get(parts.scheme):
        return
    port = parts.port or (443 if parts.scheme == "https" else 80)
    try:
        socket.create_connection((parts.hostname, port), timeout=_CONNECT_S).close()
    except OSError as error:
        raise TrackingError(
            f"nothing listens at {parts.hostname}:{port} ({error}); "
            "start the server or change --tracking-uri"
        ) from error


def raise_if_unreachable(tracking_uri: str) -> bool:
    """Ask a server or store one question, with the client that uploads runs.

    Returns:
        `False` for a SQLite store that is not there, which is made with the first run.

    Raises:
        TrackingError: If it does not answer, or is of another version of MLflow.
        ValueError: If the URI names MLflow's retired file store.
    """
    raise_if_wrong(tracking_uri)
    parts = urlparse(tracking_uri)
    if parts.scheme == "sqlite" and not Path(parts.path[1:]).is_file():
        return False
    with tracking_errors():
        mlflow_client(tracking_uri).search_experiments(max_results=1)
    return True


def experiment_id(client: Any, name: str, tracking_uri: str, artifact_root: str) -> str:
    """Id of an experiment, made if needed; a local store keeps its files beside its database."""
    found = client.get_experiment_by_name(name)
    if found is not None:
        return str(found.experiment_id)
    root = None if is_remote(tracking_uri) else artifact_root
    return str(client.create_experiment(name, artifact_location=root))


@contextmanager
def tracking_errors() -> Iterator[None]:
    """Turn what MLflow and the network raise into one line.

    Raises:
        TrackingError: In place of MLflow's exceptions and `OSError`.
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
    """The first line of an error, short enough for a log."""
    return redacted((str(error).strip().splitlines() or [""])[0][:300])
