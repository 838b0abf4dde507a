"""The scores of a job under way, from sums that do not grow with its clips."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import numpy as np

from jobs.results.scores import read_groups
from jobs.tracking.values import cell_score_key
from pipeline.rows import Row
from tango_core.benchmarks import facts_of
from tango_core.metrics import Metric, Questions, RunningEstimate

# Benchmark, name of a cell.
Cell = tuple[str, str]


class LiveScores:
    """The headline of every cell, and of all cells that share one, over the clips so far.

    Args:
        cells: All cells of the job.
    """

    def __init__(self, cells: Iterable[Cell]) -> None:
        self._metrics: dict[str, Metric] = {}
        self._cells = {cell: RunningEstimate() for cell in cells}
        self._all: dict[str, RunningEstimate] = {}

    def add(self, answers: Sequence[Row]) -> None:
        """Take all answers about one clip."""
        by_cell: dict[Cell, list[Row]] = {}
        for answer in answers:
            by_cell.setdefault((answer["benchmark"], answer["cell"]), []).append(answer)
        sums: dict[str, tuple[float, int]] = {}
        for cell, own in by_cell.items():
            metric = self._metric_of(cell[0])
            counts, values = metric.count(_questions(own))
            total, counted = float(values[counts].sum()), int(counts.sum())
            self._cells.setdefault(cell, RunningEstimate()).add(total, counted)
            before, number = sums.get(metric.name, (0.0, 0))
            sums[metric.name] = (before + total, number + counted)
        for name, (total, counted) in sums.items():
            self._all.setdefault(name, RunningEstimate()).add(total, counted)

    def metrics(self) -> dict[str, float]:
        """All of them by the names under which MLflow shows them."""
        values: dict[str, float] = {}
        for name, running in self._all.items():
            if (whole := running.value()) is not None:
                values[name] = values[f"live/{name}"] = whole.value
                values[f"live/{name}_low"], values[f"live/{name}_high"] = whole.low, whole.high
        if len(self._cells) > 1:
            benchmarks = {benchmark for benchmark, _ in self._cells}
            for (benchmark, cell), running in self._cells.items():
                if (found := running.value()) is not None:
                    name = self._metric_of(benchmark).name
                    key = cell_score_key(name, benchmark, cell, several=len(benchmarks) > 1)
                    values[key] = found.value
        return values

    def _metric_of(self, benchmark: str) -> Metric:
        """The headline of a benchmark."""
        if benchmark not in self._metrics:
            self._metrics[benchmark] = facts_of(benchmark).metrics[0]
        return self._metrics[benchmark]


def _questions(answers: Sequence[Row]) -> Questions:
    """The answers about one clip under one cell, as a metric reads them."""
    scored, right, scores, groups = [], [], [], []
    for answer in answers:
        ok = answer["status"] == "ok"
        correct = ok and bool(answer.get("correct"))
        stated = answer.get("score")
        scored.append(answer.get("answer") is not None or answer.get("correct") is not None)
        right.append(correct)
        scores.append(0.0 if not ok else float(correct) if stated is None else float(stated))
        groups.append(read_groups(answer.get("groups")))
    number = len(scored)
    return Questions(
        np.array(scored, bool),
        np.array(right, bool),
        np.array(scores, float),
        np.zeros(number, np.int64),
        groups,
        np.arange(number),
    )
