"""Getting a Ray to run on: one of our own for a laptop, or a cluster that is already there."""

from __future__ import annotations

import logging
import os
from collections.abc import Iterator
from contextlib import contextmanager

import ray

logger = logging.getLogger(__name__)


class ClusterError(ConnectionError):
    """The cluster that was named cannot be reached."""


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
        # The core's own lines on our terminal, such as one about every actor pool; its log files keep
        # them. Read when the core starts, so there is no argument for it.
        os.environ.setdefault("RAY_BACKEND_LOG_LEVEL", "fatal")
        try:
            ray.init(
                address=address or "local",
                include_dashboard=False,
                log_to_driver=False,
                logging_level=logging.ERROR,
            )
        except (ConnectionError, RuntimeError, ValueError) as error:
            reason = " ".join(str(error).split())
            raise ClusterError(f"no Ray cluster at --address {address}: {reason[:300]}") from error
    try:
        yield [dict(node["Resources"]) for node in ray.nodes() if node["Alive"]]
    finally:
        if ours:
            ray.shutdown()
