"""A bound on how often one clip may kill its worker.

Ray restarts a dead actor and repeats what it was doing, without limit. That is right for a lost
node and wrong for a clip that crashes the process each time (a native fault, the kernel's
out-of-memory killer): such a job would never end. So every stage that holds a model reports here
before it starts on a clip and after it is done with it.
"""

from __future__ import annotations

from collections import Counter
from typing import Any

import ray
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

from pipeline.rows import Row, failed

MAX_ATTEMPTS = 3


class AttemptLedger:
    """Counts the clips that were begun and not ended; lives with the driver."""

    def __init__(self) -> None:
        self._begun: Counter[str] = Counter()

    def begin(self, key: str) -> int:
        """How many attempts at `key` there have been, this one included."""
        self._begun[key] += 1
        return self._begun[key]

    def end(self, key: str) -> None:
        """The attempt came back, whatever came of it."""
        self._begun.pop(key, None)


def start_ledger() -> Any:
    """A ledger as an actor that takes no CPU, on the driver's node: no other node's loss ends it.

    Should its process die all the same, it starts again with nothing counted.
    """
    here = NodeAffinitySchedulingStrategy(ray.get_runtime_context().get_node_id(), soft=True)
    options = {"num_cpus": 0, "max_restarts": -1, "max_task_retries": -1}
    return ray.remote(**options)(AttemptLedger).options(scheduling_strategy=here).remote()


def too_many(attempt: int, row: Row, status: str) -> Row | None:
    """The failed row of a clip that killed its worker too often; `None` while it may be tried."""
    if attempt <= MAX_ATTEMPTS:
        return None
    return failed(row, status, f"the worker process died {MAX_ATTEMPTS} times on this clip")
