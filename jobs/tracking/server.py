"""The tracking server or store: its address, its client, and whether it answers."""

from __future__ import annotations

import socket
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import ParseResult, urlparse
from urllib.request import getproxies, proxy_bypass

from jobs.tracking.empty_store import begun
from pipeline.loading import loading
from pipeline.redaction import redacted
from pipeline.remote.urls import Place

if TYPE_CHECKING:
    from mlflow import MlflowClient

# Address of a server or store -> client for it.
ClientFactory = Callable[[str], "MlflowClient"]
# Host and port -> nothing, or `OSError` if nobody listens there.
PortCheck = Callable[[str, int], None]

_PORT_CHECK_S = 5.0


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
        TrackingError: If MLflow has no store for the URI, or cannot open it.
    """
    with loading():
        from mlflow import MlflowClient
        from mlflow.exceptions import MlflowException

    try:
        with loading(), begun(tracking_uri):  # brings the code that opens a database
            return MlflowClient(tracking_uri=tracking_uri)
    except MlflowException as error:
        raise TrackingError(
            f"--tracking-uri {redacted(tracking_uri)} cannot be opened ({first_line(error)}); "
            "use sqlite:///<path>/mlflow.db or the http address of a server"
        ) from error


def check_port(host: str, port: int) -> None:
    """Open a connection and close it.

    Raises:
        OSError: If nothing accepts it within seconds.
    """
    socket.create_connection((host, port), timeout=_PORT_CHECK_S).close()


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
        raise ValueError(f"tracking_uri {redacted(tracking_uri)!r}: {error}") from error
    if parts.scheme in ("", "file"):
        raise ValueError(
            f"tracking_uri {tracking_uri!r} is MLflow's retired file store; "
            "use sqlite:///<path>/mlflow.db or the http address of a server"
        )


def raise_if_unusable(tracking_uri: str, port_check: PortCheck = check_port) -> None:
    """Refuse a wrong address; find out within seconds that nobody listens at it.

    MLflow's client would try again for minutes. Behind a proxy only that client can find out.

    Raises:
        TrackingError: If nothing listens at the address.
        ValueError: As `raise_if_wrong`.
    """
    raise_if_wrong(tracking_uri)
    parts = urlparse(tracking_uri)
    if is_remote(tracking_uri) and parts.hostname and not _is_behind_proxy(parts):
        port = parts.port or (443 if parts.scheme == "https" else 80)
        try:
            port_check(parts.hostname, port)
        except OSError as error:
            raise TrackingError(
                f"nothing listens at {parts.hostname}:{port} ({error}); "
                "start the server or change --tracking-uri"
            ) from error


def _is_behind_proxy(address: ParseResult) -> bool:
    """Whether the settings of this machine send requests to an address through a proxy."""
    proxies = getproxies()
    return not proxies.keys().isdisjoint((address.scheme, "all")) and not proxy_bypass(
        address.netloc.rpartition("@")[2]
    )


def raise_if_unreachable(
    tracking_uri: str,
    *,
    connect: ClientFactory = mlflow_client,
    port_check: PortCheck = check_port,
    is_file: Callable[[Path], bool] = Path.is_file,
) -> bool:
    """Ask a server or store one question, with the client that uploads runs.

    Returns:
        `False` for a SQLite store that is not there, which is made with the first run.

    Raises:
        TrackingError: If it does not answer, or is of another version of MLflow.
        ValueError: If the URI names MLflow's retired file store.
    """
    raise_if_unusable(tracking_uri, port_check)
    parts = urlparse(tracking_uri)
    if parts.scheme == "sqlite" and not is_file(Path(parts.path[1:])):
        return False
    with tracking_errors():
        connect(tracking_uri).search_experiments(max_results=1)
    return True


def experiment_id(client: MlflowClient, name: str, tracking_uri: str, artifact_root: str) -> str:
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
    with loading():
        from mlflow.exceptions import MlflowException

    try:
        yield
    except TrackingError:  # it says already what to do
        raise
    except (MlflowException, OSError) as error:
        raise TrackingError(f"{type(error).__name__}: {first_line(error)}") from error


def first_line(error: BaseException) -> str:
    """The first line of an error, short enough for a log."""
    return redacted((str(error).strip().splitlines() or [""])[0][:300])
