"""Start or join Ray, disconnect from it, and limit the wait for the replacement of a lost node.

Ray is imported inside functions, because that takes seconds.
"""

from __future__ import annotations

import logging
import os
import socket
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from urllib.parse import urlsplit

from pipeline.errors import ClusterError
from pipeline.redaction import redacted
from pipeline.resources.pools import PoolError, num_cpus
from pipeline.runtime import stopping
from pipeline.runtime.background import within
from pipeline.runtime.clock import SYSTEM_CLOCK, Clock

logger = logging.getLogger(__name__)

START_TIMEOUT_S = 120.0
_TOKEN = "set RAY_AUTH_MODE=token and RAY_AUTH_TOKEN or RAY_AUTH_TOKEN_PATH"


def raise_if_unreachable(address: str | None) -> None:
    """Check that the port is open, because Ray would try an unreachable address for minutes.

    Args:
        address: `host:port` or `ray://host:port`; `None`, `"auto"`, `"local"` and addresses without
            a port are not checked.

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
        start_timeout_s: Timeout of the connection in seconds.

    Raises:
        ClusterError: If there is no cluster at the address, or none in time.
    """
    if is_connected():
        yield living_nodes()
        return
    try:
        # In a lasting thread, because Ray's processes end with the thread that started them.
        within(start_timeout_s, partial(_connect, address))
    except TimeoutError as error:
        what = f"the cluster at --address {address} accepted no driver" if address else _NOT_STARTED
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
            import ray

            # Threads of Ray Data may outlive an aborted job. Their next call would connect to any
            # cluster or start a new one; only `_connect` connects.
            ray._private.auto_init_hook.enable_auto_connect = False
            ray.shutdown()


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
    # Disable usage reports unless the user enables them. A cluster started by others keeps its own
    # setting; there this only affects Ray Data's records of this driver.
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    raise_if_unreachable(address)
    # Keep messages of Ray's core off the terminal; its log files contain them.
    os.environ.setdefault("RAY_BACKEND_LOG_LEVEL", "fatal")
    import ray
    from ray.exceptions import AuthenticationError

    what = f"no Ray cluster at --address {address}" if address else _NOT_STARTED
    try:
        ray.init(
            address=address or "local",
            # Ray's own count ignores the CPU affinity set by a batch system.
            num_cpus=num_cpus() if address is None else None,
            include_dashboard=False if address is None else None,
            log_to_driver=False,
            logging_level=logging.ERROR,
        )
    except (AuthenticationError, ConnectionError, RuntimeError, ValueError) as error:
        # A Ray that refuses a token does not always report that as the reason.
        is_local = address in (None, "auto") and not isinstance(error, AuthenticationError)
        hint = "" if is_local else f"; if it asks for a token, {_TOKEN}"
        reason = " ".join(str(error).split())[:300]
        raise ClusterError(f"{what}: {reason}{hint}") from error
    # Ray prints errors of the cluster on standard output, regardless of `log_to_driver`. This
    # switch of its debugger disables that; its log files contain everything.
    ray._private.worker._worker_logs_enabled = False


LOOK_EVERY_S = 5.0


class RoomWatch:
    """Checks every few seconds whether the cluster still has the resources for all pools.

    Call it often. After the loss of a node the remaining workers continue; the job is ended only if
    it also gets no results for `timeout_s`.

    Args:
        nodes: Returns the resources of the living nodes.
        check: Raises `PoolError` if the pools do not fit these nodes.
        timeout_s: Maximum time in seconds without enough resources and without a result.
        clock: Clock for the intervals.
    """

    def __init__(
        self,
        nodes: Callable[[], Sequence[Mapping[str, float]]],
        check: Callable[[Sequence[Mapping[str, float]]], None],
        timeout_s: float,
        clock: Clock = SYSTEM_CLOCK,
    ) -> None:
        self._nodes = nodes
        self._check = check
        self._timeout_s = timeout_s
        self._clock = clock
        self._last_check = clock.monotonic()
        self._lost_since: float | None = None
        self._last_result = self._last_check

    def progressed(self) -> None:
        """Record that a result arrived."""
        self._last_result = self._clock.monotonic()

    def __call__(self) -> None:
        """Check the cluster if the interval has passed.

        Raises:
            ClusterError: If the pools have not fitted the cluster for too long.
        """
        now = self._clock.monotonic()
        if now - self._last_check < LOOK_EVERY_S:
            return
        self._last_check = now
        try:
            self._check(self._nodes())
        except PoolError as error:
            if self._lost_since is None:
                self._lost_since = now
                logger.warning(
                    "a node was lost: %s; waiting %g s for another one", error, self._timeout_s
                )
            if now - max(self._lost_since, self._last_result) >= self._timeout_s:
                raise ClusterError(
                    f"a node was lost and none came in its place within cluster.lost_timeout_s = "
                    f"{self._timeout_s:g} s: {error}"
                ) from error
        except Exception as error:  # the job's own calls to Ray report it
            logger.debug("the nodes are not known: %s", error)
        else:
            self._lost_since = None
