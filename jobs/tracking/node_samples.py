"""The nodes of a cluster in numbers: how busy they are together, and some of them one by one."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from statistics import fmean

from jobs.tracking.values import metric_name
from pipeline import process
from pipeline.node_usage import Reading

MAX_NODES = 16
EACH_EVERY_S = 60.0
"""Between two samples of single nodes: many nodes at every sample would fill the spool."""


class NodeNumbers:
    """Mean and maximum over all nodes, and the first nodes that were seen.

    A job whose only node is the driver's has none: `system/...` says the same.
    """

    def __init__(self) -> None:
        self._shown: set[str] = set()
        self._next_s = 0.0

    def metrics(self, readings: Sequence[Reading], now_s: float) -> dict[str, float]:
        """By the names under which MLflow shows them.

        Args:
            readings: The last one of every node and GPU.
            now_s: Seconds since the job started.
        """
        together: dict[str, list[float]] = defaultdict(list)
        nodes: dict[tuple[str, str], list[float]] = defaultdict(list)
        for host, _, quantity, percent in readings:
            together[quantity].append(percent)
            nodes[quantity, host].append(percent)
        hosts = {reading.host for reading in readings}
        if hosts <= {process.host()}:
            return {}
        values: dict[str, float] = {}
        for quantity, all_of_it in together.items():
            values[f"node_{quantity}_percent/mean"] = fmean(all_of_it)
            values[f"node_{quantity}_percent/max"] = max(all_of_it)
        if now_s >= self._next_s:
            self._next_s = now_s + EACH_EVERY_S
            new = sorted(hosts - self._shown)
            self._shown |= set(new[: MAX_NODES - len(self._shown)])
            for (quantity, host), own in nodes.items():
                if host in self._shown:
                    values[f"node_{quantity}_percent/{metric_name(host)}"] = fmean(own)
        return values
