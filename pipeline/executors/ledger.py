"""What the workers of a job tell their driver, in one actor.

Its process imports this module, so it imports little: neither torch nor Ray Data.
"""

from __future__ import annotations

from pipeline.executors.attempts import AttemptLedger
from pipeline.metrics import StageBoard
from pipeline.resources.node_usage import UsageBoard


class JobLedger(AttemptLedger, StageBoard, UsageBoard):
    """All of it in one actor, because each is a process that takes a second to start."""

    def __init__(self) -> None:
        AttemptLedger.__init__(self)
        StageBoard.__init__(self)
        UsageBoard.__init__(self)
