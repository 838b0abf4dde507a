"""Compute live metrics of a job: scores so far, stages, load of its nodes."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from statistics import fmean

import numpy as np

from jobs.results.answer_columns import read_groups
from jobs.tracking.contents import cell_score_key, metric_name
from pipeline.metrics import JobBoard, StageState
from pipeline.resources.node_usage import Reading
from pipeline.rows import AnswerRow, Result
from pipeline.runtime import process
from tango_core.benchmarks import facts_of
from tango_core.metrics import Metric, Questions, RunningEstimate

# Benchmark, name of a cell.
Cell = tuple[str, str]

MAX_NODES = 16
EACH_NODE_EVERY_S = 60.0
"""Seconds between samples of single nodes, to limit the size of the events file."""


class LiveScores:
    """Headline metric over the clips so far: per cell, and over all cells with the same metric.

    Args:
        cells: All cells of the job.
    """

    def __init__(self, cells: Iterable[Cell]) -> None:
        self._cells = {cell: RunningEstimate() for cell in cells}
        self._all: defaultdict[str, RunningEstimate] = defaultdict(RunningEstimate)

    def add(self, answers: Sequence[AnswerRow]) -> None:
        """Add all answers about one clip."""
        by_cell: defaultdict[Cell, list[AnswerRow]] = defaultdict(list)
        for answer in answers:
            by_cell[answer.benchmark, answer.cell].append(answer)
        sums: defaultdict[str, list[tuple[float, int]]] = defaultdict(list)
        for cell, own in by_cell.items():
            metric = _headline(cell[0])
            counts, values = metric.count(_questions(own))
            found = float(values[counts].sum()), int(counts.sum())
            self._cells.setdefault(cell, RunningEstimate()).add(*found)
            sums[metric.name].append(found)
        for name, parts in sums.items():
            self._all[name].add(sum(total for total, _ in parts), sum(n for _, n in parts))

    def metrics(self) -> dict[str, float]:
        """Metric name in MLflow -> value."""
        values: dict[str, float] = {}
        for name, running in self._all.items():
            if (whole := running.value()) is not None:
                values[name] = values[f"live/{name}"] = whole.value
                values[f"live/{name}_low"], values[f"live/{name}_high"] = whole.low, whole.high
        if len(self._cells) > 1:
            several = len({benchmark for benchmark, _ in self._cells}) > 1
            for (benchmark, cell), running in self._cells.items():
                if (found := running.value()) is not None:
                    name = _headline(benchmark).name
                    values[cell_score_key(name, benchmark, cell, several=several)] = found.value
        return values


def _headline(benchmark: str) -> Metric:
    return facts_of(benchmark).metrics[0]


def _questions(answers: Sequence[AnswerRow]) -> Questions:
    """Convert the answers about one clip in one cell for `Metric.count`."""
    ok = np.array([answer.status == "ok" for answer in answers], bool)
    right = ok & np.array([bool(answer.correct) for answer in answers], bool)
    stated = [answer.score for answer in answers]
    scores = [float(r) if s is None else float(s) for r, s in zip(right, stated, strict=True)]
    return Questions(
        np.array([a.answer is not None or a.correct is not None for a in answers]),
        right,
        np.where(ok, scores, 0.0),
        np.zeros(len(answers), np.int64),
        [read_groups(answer.groups) for answer in answers],
        np.arange(len(answers)),
    )


class RunningNumbers:
    """Running sums over the finished clips of this attempt, in constant memory.

    Args:
        board: Board on which the stages report their progress.
        cells: (benchmark, name) of every cell.
    """

    def __init__(self, board: JobBoard, cells: list[Cell]) -> None:
        self._board = board
        self._scores = LiveScores(cells)
        self._shown_nodes: set[str] = set()
        self._nodes_next_s = 0.0
        self.clips = self.failed_clips = self.hits = self.computed = self.answers = self.tokens = 0
        self._failures: Counter[str] = Counter()
        self._last = (0.0, 0, 0, dict.fromkeys(board.expected, 0.0))

    def add(self, result: Result, num_caches: int) -> None:
        """Add one finished clip."""
        self.clips += 1
        self.failed_clips += result.has_failed
        if result.status == "ok":
            self.hits += num_caches - result.num_misses
            self.computed += result.num_computed
        else:
            self._failures[result.status] += 1
        for answer in result.answers:
            self.answers += 1
            self.tokens += (answer.prompt_tokens or 0) + (answer.new_tokens or 0)
            if result.status == "ok" and answer.has_failed:
                self._failures[answer.status] += 1
        self._scores.add(result.answers)

    def metrics(self, now_s: float) -> dict[str, float]:
        """Metric name in MLflow -> value.

        Args:
            now_s: Seconds since the job started; rates are computed since the previous call.
        """
        before_s, clips, tokens, busy = self._last
        passed = max(now_s - before_s, 1e-6)
        states = self._board.states()
        values = {
            "live/clips": self.clips,
            "live/failed_clips": self.failed_clips,
            "live/answers": self.answers,
            "live/clips_per_s": (self.clips - clips) / passed,
            "live/tokens_per_s": (self.tokens - tokens) / passed,
            "live/cache_hits": self.hits,
            "live/token_sets_computed": self.computed,
            **{f"failures/{metric_name(status)}": n for status, n in self._failures.items()},
            **self._scores.metrics(),
            **_stage_metrics(states, busy, passed),
            **self._node_metrics(self._board.readings, now_s),
        }
        busy_now = {stage: state.count.busy_s for stage, state in states.items()}
        self._last = (now_s, self.clips, self.tokens, busy_now)
        return {name: float(value) for name, value in values.items()}

    def _node_metrics(self, readings: Sequence[Reading], now_s: float) -> dict[str, float]:
        """Mean and maximum over all nodes, and at longer intervals values of single nodes.

        Empty if the driver's node is the only one, which `system/...` already covers.
        """
        hosts = {reading.host for reading in readings}
        if hosts <= {process.host()}:
            return {}
        all_nodes: defaultdict[str, list[float]] = defaultdict(list)
        nodes: defaultdict[tuple[str, str], list[float]] = defaultdict(list)
        for host, _, quantity, percent in readings:
            all_nodes[quantity].append(percent)
            nodes[quantity, host].append(percent)
        values: dict[str, float] = {}
        for quantity, percents in all_nodes.items():
            values[f"node_{quantity}_percent/mean"] = fmean(percents)
            values[f"node_{quantity}_percent/max"] = max(percents)
        if now_s >= self._nodes_next_s:
            self._nodes_next_s = now_s + EACH_NODE_EVERY_S
            new = sorted(hosts - self._shown_nodes)
            self._shown_nodes |= set(new[: MAX_NODES - len(self._shown_nodes)])
            for (quantity, host), node_percents in nodes.items():
                if host in self._shown_nodes:
                    values[f"node_{quantity}_percent/{metric_name(host)}"] = fmean(node_percents)
        return values


def _stage_metrics(
    states: Mapping[str, StageState], busy: Mapping[str, float], passed: float
) -> dict[str, float]:
    """Queue lengths, busy shares and counts of finished clips of the stages."""
    values: dict[str, float] = {}
    for stage, state in states.items():
        values[f"queue/{stage}"] = state.waiting
        values[f"stage_clips/{stage}"] = state.count.finished
        slots = max(state.slots, 1)
        share = (state.count.busy_s - busy.get(stage, 0.0)) / (passed * slots)
        if share <= 0:  # clips report their time when finished; use the number of clips in progress
            share = (state.count.started - state.count.finished) / slots
        values[f"busy_share/{stage}"] = max(0.0, min(1.0, share))
    return values
