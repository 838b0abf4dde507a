"""A Ray to run on: one of our own for a laptop, or a cluster that is already there."""

from __future__ import annotations

import logging
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager

import ray

from pipeline.background import within
from pipeline.errors import ClusterError
from pipeline.executors.address import raise_if_unreachable

START_TIMEOUT_S = 120.0


@contextmanager
def connected(
    address: str | None = None, start_timeout_s: float = START_TIMEOUT_S
) -> Iterator[list[dict[str, float]]]:
    """Connect to Ray, give the resources of its nodes, and disconnect.

    A Ray that is already connected in this process is used and left as it is.

    Args:
        address: `None` starts a private Ray on this machine; otherwise `"auto"`, `host:port` or
            `ray://host:port`.
        start_timeout_s: Seconds that may take.

    Raises:
        ClusterError: If there is no cluster at the address, or none in time.
    """
    ours = not ray.is_initialized()
    if ours:
        _connect(address, start_timeout_s)
    try:
        yield living_nodes()
    finally:
        if ours:
            ray.shutdown()


def living_nodes() -> list[dict[str, float]]:
    """The resources of every node that is alive."""
    return [dict(node["Resources"]) for node in ray.nodes() if node["Alive"]]


def _connect(address: str | None, timeout_s: float) -> None:
    """Start or join; only an exception says that it failed."""
    # Ray's own switch: what we run is not reported to its makers unless the user asks for it. A
    # cluster of somebody else keeps its setting; there this is about what Ray Data records of us.
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    raise_if_unreachable(address)
    # Ray's core writes lines of its own to our terminal, one for every actor pool; its log files
    # keep them. It reads this when it starts, and there is no argument for it.
    os.environ.setdefault("RAY_BACKEND_LOG_LEVEL", "fatal")
    try:
        with _muted_stderr():
            # In a thread of its own: Ray has no bound on this, and a Ray of our own ends with the
            # thread that started it.
            within(timeout_s, lambda: _init(address))
    except TimeoutError as error:
        what = (
            f"the cluster at --address {address} let nobody in" if address else "Ray did not start"
        )
        raise ClusterError(
            f"{what} within cluster.start_timeout_s = {timeout_s:g} s; raise it, use executor: "
            "local, or look into the logs of Ray (/tmp/ray/session_latest/logs)"
        ) from error
    except (ConnectionError, RuntimeError, ValueError) as error:
        reason = " ".join(str(error).split())
        what = f"no Ray cluster at --address {address}" if address else "Ray did not start"
        raise ClusterError(f"{what}: {reason[:300]}") from error


def _init(address: str | None) -> None:
    """Ask Ray."""
    ray.init(
        address=address or "local",
        include_dashboard=False if address is None else None,
        log_to_driver=False,
        logging_level=logging.ERROR,
    )


@contextmanager
def _muted_stderr() -> Iterator[None]:
    """Drop what native code writes to file descriptor 2, such as the banner of Ray's core."""
    sys.stderr.flush()
    saved = os.dup(2)
    with open(os.devnull, "w") as nowhere:
        os.dup2(nowhere.fileno(), 2)
    try:
        yield
    finally:
        os.dup2(saved, 2)
        os.close(saved)
