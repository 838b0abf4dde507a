"""A Ray that starts while the job is still being planned.

Starting Ray takes seconds in which this process mostly waits, so that happens beside the imports
and the planning of the driver.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager


class EarlyRay:
    """Ray, connected in a thread of its own.

    The thread lives as long as Ray does: Ray's processes are children of the thread that started
    them, and Linux ends them with it. Connecting outside of the main thread also leaves the
    driver's signal handlers alone.
    """

    def __init__(self, address: str | None) -> None:
        """Begin to connect; returns at once.

        Args:
            address: As for `cluster.connected`.
        """
        self._address = address
        self._connected = threading.Event()
        self._over = threading.Event()
        self._error: BaseException | None = None
        self._thread = threading.Thread(target=self._live, name="ray", daemon=True)
        self._thread.start()

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

    def close(self, timeout_s: float | None = None) -> None:
        """Disconnect, and end what was started here; waits at most `timeout_s` seconds."""
        self._over.set()
        self._thread.join(timeout_s)

    def _live(self) -> None:
        """Connect, say so, and disconnect when told to."""
        from pipeline.executors import cluster

        try:
            cluster.connect(self._address)
        except BaseException as error:
            self._error = error
            return
        finally:
            self._connected.set()
        try:
            if not self._over.is_set():
                from pipeline.executors import ray_data  # noqa: F401  (Ray Data takes a second)
            self._over.wait()
        finally:
            import ray

            ray.shutdown()


@contextmanager
def started_early(wanted: bool, address: str | None) -> Iterator[EarlyRay | None]:
    """Ray on its way while the block runs, if it is wanted and not connected already."""
    import sys

    loaded = sys.modules.get("ray")
    if not wanted or (loaded is not None and loaded.is_initialized()):
        yield None
        return
    early = EarlyRay(address)
    try:
        yield early
    finally:
        early.close()
