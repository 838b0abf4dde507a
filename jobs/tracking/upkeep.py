"""What a living sender does now and then, whether or not there are numbers to send.

It says that its driver lives, takes back what somebody said of the driver's death while the server
was away, and ends the runs of drivers that have died.
"""

from __future__ import annotations

from datetime import UTC

from jobs.tracking.drivers import DRIVER_TAG, HEARTBEAT_TAG
from jobs.tracking.repair import repair
from jobs.tracking.replay import Replay
from pipeline.clock import SYSTEM_CLOCK, Clock

HEARTBEAT_S = 60.0
"""Between two signs of life: many fit into `drivers.SILENT_S`, however rare the samples are."""
REPAIR_S = 300.0
"""Between two looks at the runs of others, one request each while nobody has died."""


class Upkeep:
    """The upkeep of a store by one sender.

    Args:
        replay: Of the run whose driver lives.
        tracking_uri: Address of the store.
        clock: Says when it is time.
    """

    def __init__(self, replay: Replay, tracking_uri: str, clock: Clock = SYSTEM_CLOCK) -> None:
        self._replay, self._uri, self._clock = replay, tracking_uri, clock
        self._next_heartbeat = self._next_repair = clock.monotonic()

    def now_and_then(self) -> None:
        """Do what is due; call it often, after all events were sent."""
        now = self._clock.monotonic()
        if now >= self._next_heartbeat:
            self._say_alive()
            self._next_heartbeat = now + HEARTBEAT_S
        if now >= self._next_repair:
            self._next_repair = now + REPAIR_S  # one that fails is not tried at every sample
            runs = self._replay.runs
            spare = self._replay.sent.run
            repair(runs.client, runs.experiment, self._uri, spare=spare, clock=self._clock)

    def _say_alive(self) -> None:
        """A sign of life, and RUNNING again if somebody thought that there would be none.

        A run that its own driver has ended, or that another driver has taken, is left alone.
        """
        runs, run = self._replay.runs, self._replay.sent.run
        found = runs.client.get_run(run)
        if not self._replay.driver or found.data.tags.get(DRIVER_TAG) != self._replay.driver:
            return
        now = self._clock.now().astimezone(UTC).isoformat(timespec="seconds")
        runs.tags(run, {HEARTBEAT_TAG: now})
        if found.info.status != "RUNNING":
            runs.run_on(run)
