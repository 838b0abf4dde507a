"""Limit how long a job waits for the replacement of a lost node.

Ray restarts the actors of a lost node on other nodes; if no node has enough resources, it waits
forever without a message.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence

from pipeline.errors import ClusterError
from pipeline.resources.pools import PoolError
from pipeline.runtime.clock import SYSTEM_CLOCK, Clock

logger = logging.getLogger(__name__)

LOOK_EVERY_S = 5.0


class RoomWatch:
    """Checks every few seconds whether the pools still fit the cluster; call it often.

    The remaining workers continue; the job is ended only if it also gets no results.

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
        self._looked = clock.monotonic()
        self._lost: float | None = None
        self._progress = self._looked

    def progressed(self) -> None:
        """Record that a result arrived."""
        self._progress = self._clock.monotonic()

    def __call__(self) -> None:
        """Check the cluster if the interval has passed.

        Raises:
            ClusterError: If the pools have not fitted the cluster for too long.
        """
        now = self._clock.monotonic()
        if now - self._looked < LOOK_EVERY_S:
            return
        self._looked = now
        try:
            nodes = self._nodes()
        except Exception as error:  # Ray reports the reason itself
            logger.debug("the nodes are not known: %s", error)
            return
        try:
            self._check(nodes)
        except PoolError as error:
            if self._lost is None:
                self._lost = now
                logger.warning(
                    "a node was lost: %s; waiting %g s for another one", error, self._timeout_s
                )
            if now - max(self._lost, self._progress) >= self._timeout_s:
                raise ClusterError(
                    f"a node was lost and none came in its place within cluster.lost_timeout_s = "
                    f"{self._timeout_s:g} s: {error}"
                ) from error
        else:
            if self._lost is not None:
                logger.warning("the cluster has room for all pools again")
            self._lost = None
