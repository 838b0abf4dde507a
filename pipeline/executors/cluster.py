"""A Ray to run on: one of our own for a laptop, or a cluster that is already there."""

from __future__ import annotations

import logging
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager

import ray

from pipeline.errors import ClusterError
from pipeline.executors.address import raise_if_unreachable

logger = logging.getLogger(__name__)


@contextmanager
def connected(address: str | None = None) -> Iterator[list[dict[str, float]]]:
    """Connect to Ray, give the resources of its nodes, and disconnect.

    A Ray that is already connected in this process is used and left as it is.

    Args:
        address: `None` starts a private Ray on this machine; otherwise `"auto"`, `host:port` or
            `ray://host:port`.

    Raises:
        ClusterError: If there is no cluster at the address.
    """
    ours = not ray.is_initialized()
    if ours:
        _connect(address)
    try:
        yield [dict(node["Resources"]) for node in ray.nodes() if node["Alive"]]
    finally:
        if ours:
            ray.shutdown()


def _connect(address: str | None) -> None:
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
            ray.init(
                address=address or "local",
                include_dashboard=False if address is None else None,
                log_to_driver=False,
                logging_level=logging.ERROR,
            )
    except (ConnectionError, RuntimeError, ValueError) as error:
        reason = " ".join(str(error).split())
        raise ClusterError(f"no Ray cluster at --address {address}: {reason[:300]}") from error


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
