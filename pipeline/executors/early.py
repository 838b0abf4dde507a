"""A Ray that starts while the job is still being planned.

Starting Ray takes seconds in which this process mostly waits, so that happens beside the imports
and the planning of the driver.
"""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import ClassVar

from pipeline.errors import ClusterError
from pipeline.runtime import stopping
from pipeline.runtime.background import LastingThread
from pipeline.runtime.loading import loading

START_TIMEOUT_S = 120.0
_CLOSED_WITHIN_S = 30.0
_IMPORTED_WITHIN_S = 5.0


class EarlyRay:
    """Ray, connected in a lasting thread.

    The thread is there as long as Ray is: Ray's processes are children of the thread that started
    them, and Linux ends them with it.
    """

    _closing: ClassVar[set[EarlyRay]] = set()

    def __init__(self, address: str | None) -> None:
        """Begin to connect; returns when Ray is imported.

        Imports of two threads hold each other up, and Ray's own processes start after this one.

        Args:
            address: As for `connected`.
        """
        self._address = address
        self._imported = threading.Event()
        self._connected = threading.Event()
        self._over = threading.Event()
        self._freed = threading.Event()
        self._ended = threading.Event()
        self._error: BaseException | None = None
        LastingThread.start_on(self._live)
        self._imported.wait(_IMPORTED_WITHIN_S)

    def wait(self, timeout_s: float | None = None) -> None:
        """Wait until Ray is connected.

        Raises:
            ClusterError: If it cannot be.
            TimeoutError: If it takes longer than `timeout_s` seconds.
        """
        if not self._connected.wait(timeout_s):
            raise TimeoutError(f"Ray has not started within {timeout_s:g} s")
        if self._error is not None:
            raise self._error

    @property
    def is_connected(self) -> bool:
        """Whether the attempt to connect is over."""
        return self._connected.is_set()

    def close(self, timeout_s: float | None = None) -> None:
        """Disconnect, and end what was started here; waits at most `timeout_s` seconds."""
        if not self._ended.is_set():
            self._closing.add(self)
        self._over.set()
        self._ended.wait(timeout_s)

    def leave(self, timeout_s: float) -> None:
        """The same for a process that ends now: waits until nothing but processes is left."""
        self.close(0)
        self._freed.wait(timeout_s)

    @classmethod
    def wait_for_closing(cls) -> None:
        """Wait until every one that is closed in this process has ended."""
        for one in tuple(cls._closing):
            if one._ended.wait(_CLOSED_WITHIN_S):
                cls._closing.discard(one)

    def _live(self) -> Callable[[], None]:
        """Connect, say so, and disconnect when told to; returns what says that it is over."""
        try:
            with loading():
                from pipeline.executors import cluster

            self._imported.set()
            cluster.connect(self._address)
        except BaseException as error:
            self._error = error
            self._freed.set()
            return self._ended.set
        finally:
            self._imported.set()
            self._connected.set()
        try:
            if not self._over.is_set():
                with loading():  # Ray Data takes a second
                    from pipeline.executors import ray_data  # noqa: F401
            self._over.wait()
        finally:
            try:
                cluster.disconnect(self._freed.set)
            finally:
                self._freed.set()
        return self._ended.set


@contextmanager
def started_early(
    wanted: bool, address: str | None, *, last: bool = False
) -> Iterator[EarlyRay | None]:
    """Ray on its way while the block runs, if it is wanted and not connected already.

    Args:
        wanted: Whether it is.
        address: As for `connected`.
        last: Whether this process ends soon after the block and with it a Ray of its own, which
            takes more than a second to end in order. Another one in this process waits for that.
            If the block fails, or the cluster has lost a node, the process stays connected to the
            cluster, which notices its end: after such a loss Ray may end one that disconnects, with
            exit code 1 and without a word.
    """
    if wanted:
        EarlyRay.wait_for_closing()
    loaded = sys.modules.get("ray")
    if not wanted or (loaded is not None and loaded.is_initialized()):
        yield None
        return
    early = EarlyRay(address)
    failed = True
    try:
        yield early
        failed = False
    finally:
        # One that has not even started is left to itself, and so is any after a signal.
        if not early.is_connected or stopping.is_asked():
            early.close(0)
        elif last and address is None:
            early.leave(_CLOSED_WITHIN_S)
        elif not (last and (failed or _has_lost_a_node())):
            early.close(_CLOSED_WITHIN_S)


@contextmanager
def connected(
    address: str | None = None,
    early: EarlyRay | None = None,
    start_timeout_s: float = START_TIMEOUT_S,
) -> Iterator[list[dict[str, float]]]:
    """Connect to Ray, give the resources of its nodes, and disconnect.

    A Ray that is already connected in this process is used and left as it is.

    Args:
        address: `None` starts a private Ray on this machine; otherwise `"auto"`, `host:port` or
            `ray://host:port`.
        early: One that is on its way; whoever started it ends it.
        start_timeout_s: Seconds that may take.

    Raises:
        ClusterError: If there is no cluster at the address, or none in time.
    """
    with started_early(early is None, address) as ours:
        starting = early or ours
        if starting is not None:
            try:
                starting.wait(start_timeout_s)
            except TimeoutError as error:
                raise ClusterError(_not_in_time(address, start_timeout_s)) from error
        from pipeline.executors.cluster import living_nodes

        yield living_nodes()


def _not_in_time(address: str | None, timeout_s: float) -> str:
    """What to say of a Ray that is awaited no longer."""
    what = f"the cluster at --address {address} let nobody in" if address else "Ray did not start"
    return (
        f"{what} within cluster.start_timeout_s = {timeout_s:g} s; raise it, use executor: local, "
        "or look into the logs of Ray (/tmp/ray/session_latest/logs)"
    )


def _has_lost_a_node() -> bool:
    """Whether a node that was there is not, which leaves Ray's own connections in doubt."""
    from pipeline.executors.cluster import has_lost_a_node

    return has_lost_a_node()
