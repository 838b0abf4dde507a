"""Start or join Ray, and leave it: one of our own for a laptop, or a cluster that is there."""

from __future__ import annotations

import logging
import os
from collections.abc import Callable

import ray
from ray.exceptions import AuthenticationError

from pipeline.errors import ClusterError
from pipeline.executors.address import raise_if_unreachable
from pipeline.executors.quiet import without_native_lines
from pipeline.resources.cgroups import num_cpus

logger = logging.getLogger(__name__)

_TOKEN = "set RAY_AUTH_MODE=token and RAY_AUTH_TOKEN or RAY_AUTH_TOKEN_PATH"


def living_nodes() -> list[dict[str, float]]:
    """The resources of every node that is alive."""
    return [dict(node["Resources"]) for node in ray.nodes() if node["Alive"]]


def has_lost_a_node() -> bool:
    """Whether the cluster knows of a node that is dead; one that does not answer is in doubt."""
    try:
        return not all(node["Alive"] for node in ray.nodes())
    except Exception as error:
        logger.debug("the nodes are not known: %s", error)
        return True


def connect(address: str | None) -> None:
    """Start or join, without a bound in time; only an exception says that it failed.

    Raises:
        ClusterError: If there is no cluster at the address.
    """
    # Ray's own switch: what we run is not reported to its makers unless the user asks for it. A
    # cluster of somebody else keeps its setting; there this is about what Ray Data records of us.
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    raise_if_unreachable(address)
    # Ray's core writes lines of its own to our terminal, one for every actor pool; its log files
    # keep them. It reads this when it starts, and there is no argument for it.
    os.environ.setdefault("RAY_BACKEND_LOG_LEVEL", "fatal")
    try:
        with without_native_lines():
            ray.init(
                address=address or "local",
                # Ray's own count ignores the CPUs that a batch system binds this process to.
                num_cpus=num_cpus() if address is None else None,
                include_dashboard=False if address is None else None,
                log_to_driver=False,
                logging_level=logging.ERROR,
            )
            _keep_off_stdout()
    except AuthenticationError as error:
        raise ClusterError(f"{_failed(address, error)}; {_TOKEN}") from error
    except (ConnectionError, RuntimeError, ValueError) as error:
        # Something listens at the address, and a Ray that refuses a token does not say so.
        hint = f"; if it asks for a token, {_TOKEN}" if address not in (None, "auto") else ""
        raise ClusterError(f"{_failed(address, error)}{hint}") from error


def _failed(address: str | None, error: Exception) -> str:
    """What did not work, with the beginning of Ray's reason."""
    reason = " ".join(str(error).split())
    what = f"no Ray cluster at --address {address}" if address else "Ray did not start"
    return f"{what}: {reason[:300]}"


def disconnect(freed: Callable[[], object] = lambda: None) -> None:
    """Disconnect, and end the Ray that `connect` started; only another `connect` starts one again.

    Threads of Ray Data outlive a job that is given up. Whatever they ask of Ray next would connect
    to any cluster that is there, or start one of its own.

    Args:
        freed: Called when what our own Ray had put on the disk for want of memory is removed. Then
            only its processes are left, which also end with this one.
    """
    ray._private.auto_init_hook.enable_auto_connect = False
    node = ray._private.worker._global_node
    if node is not None and node.is_head():
        node.destroy_external_storage()
    freed()
    ray.shutdown()


def _keep_off_stdout() -> None:
    """Leave standard output to our own results.

    Ray prints there what goes wrong in the cluster, such as a lost node with the end of its log,
    with `log_to_driver` or without. This is the switch of its own debugger; its log files keep all.
    """
    ray._private.worker._worker_logs_enabled = False
