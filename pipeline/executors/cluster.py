"""Start or join Ray, and disconnect from it.

Ray is imported when it is needed: that takes seconds.
"""

from __future__ import annotations

import logging
import os
import socket
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from urllib.parse import urlsplit

from pipeline.errors import ClusterError
from pipeline.redaction import redacted
from pipeline.resources.cgroups import num_cpus
from pipeline.runtime import stopping
from pipeline.runtime.background import within

logger = logging.getLogger(__name__)

START_TIMEOUT_S = 120.0
_TOKEN = "set RAY_AUTH_MODE=token and RAY_AUTH_TOKEN or RAY_AUTH_TOKEN_PATH"


def raise_if_unreachable(address: str | None) -> None:
    """Check that the port is open, because Ray would try an unreachable address for minutes.

    Args:
        address: `None`, `"auto"`, `host:port` or `ray://host:port`; the first two are not checked.

    Raises:
        ClusterError: If nothing listens at the address, or it is invalid.
    """
    if address in (None, "auto", "local"):
        return
    where = redacted(str(address))
    try:
        parts = urlsplit(address if "://" in str(address) else f"//{address}")
        host, port = parts.hostname, parts.port
    except ValueError as error:
        raise ClusterError(f"--address {where} is no host:port: {error}") from error
    if host is None or port is None:
        return
    try:
        socket.create_connection((host, port), timeout=10).close()
    except OSError as error:
        raise ClusterError(f"no Ray cluster at --address {where}: {error}") from error


@contextmanager
def connected(
    address: str | None = None, start_timeout_s: float = START_TIMEOUT_S
) -> Iterator[list[dict[str, float]]]:
    """Context manager that connects to Ray, yields the resources of its nodes, and disconnects.

    An existing connection of this process is used and kept. If the cluster has lost a node, this
    process stays connected until its end, because disconnecting could make Ray end the process with
    exit code 1 and no message.

    Args:
        address: `None` starts a private Ray on this machine; otherwise `"auto"`, `host:port` or
            `ray://host:port`.
        start_timeout_s: Seconds that may take.

    Raises:
        ClusterError: If there is no cluster at the address, or none in time.
    """
    if is_connected():
        yield living_nodes()
        return
    try:
        # In a thread that lasts as long as this process: Ray's processes end with their thread.
        within(start_timeout_s, partial(_connect, address))
    except TimeoutError as error:
        what = f"the cluster at --address {address} let nobody in" if address else _NOT_STARTED
        raise ClusterError(
            f"{what} within cluster.start_timeout_s = {start_timeout_s:g} s; raise it, use "
            "executor: local, or look into the logs of Ray (/tmp/ray/session_latest/logs)"
        ) from error
    has_failed = True
    try:
        yield living_nodes()
        has_failed = False
    finally:
        stays = address is not None and (has_failed or _has_lost_a_node())
        if not stays and not stopping.is_asked():
            _disconnect()


def is_connected() -> bool:
    """Whether this process is connected to Ray."""
    ray = sys.modules.get("ray")
    return ray is not None and bool(ray.is_initialized())


def living_nodes() -> list[dict[str, float]]:
    """The resources of every node that is alive."""
    import ray

    return [dict(node["Resources"]) for node in ray.nodes() if node["Alive"]]


def _has_lost_a_node() -> bool:
    """Whether the cluster has dead nodes; also true if it does not respond."""
    import ray

    try:
        return not all(node["Alive"] for node in ray.nodes())
    except Exception as error:
        logger.debug("the nodes are not known: %s", error)
        return True


_NOT_STARTED = "Ray did not start"


def _connect(address: str | None) -> None:
    # Ray's own switch: what we run is not reported to its makers unless the user asks for it. A
    # cluster of somebody else keeps its setting; there this is about what Ray Data records of us.
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    raise_if_unreachable(address)
    # Ray's core writes lines of its own to the terminal; its log files keep them.
    os.environ.setdefault("RAY_BACKEND_LOG_LEVEL", "fatal")
    import ray
    from ray.exceptions import AuthenticationError

    what = f"no Ray cluster at --address {address}" if address else _NOT_STARTED
    try:
        ray.init(
            address=address or "local",
            # Ray's own count ignores the CPUs that a batch system binds this process to.
            num_cpus=num_cpus() if address is None else None,
            include_dashboard=False if address is None else None,
            log_to_driver=False,
            logging_level=logging.ERROR,
        )
    except AuthenticationError as error:
        raise ClusterError(f"{what}: {_beginning(error)}; {_TOKEN}") from error
    except (ConnectionError, RuntimeError, ValueError) as error:
        # Something listens at the address, and a Ray that refuses a token does not say so.
        hint = f"; if it asks for a token, {_TOKEN}" if address not in (None, "auto") else ""
        raise ClusterError(f"{what}: {_beginning(error)}{hint}") from error
    # Ray prints on standard output what goes wrong in the cluster, with `log_to_driver` or without.
    # This is the switch of its own debugger; its log files keep all.
    ray._private.worker._worker_logs_enabled = False


def _beginning(error: Exception) -> str:
    return " ".join(str(error).split())[:300]


def _disconnect() -> None:
    """Disconnect, and stop the Ray that `_connect` started.

    Threads of Ray Data may outlive an aborted job. Their next call would connect to any cluster or
    start a new one, so automatic connection is disabled; only `_connect` connects.
    """
    import ray

    ray._private.auto_init_hook.enable_auto_connect = False
    ray.shutdown()
