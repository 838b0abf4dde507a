"""The numbers of a job under way: what its results add up to, and what its stages do."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping

from jobs.tracking.live_scores import Cell, LiveScores
from jobs.tracking.node_samples import NodeNumbers
from jobs.tracking.values import metric_name
from pipeline.metrics import JobBoard, StageState
from pipeline.rows import Row
from pipeline.stages.declarations import has_failed, is_failed


class RunningNumbers:
    """Sums over the finished clips of this attempt; their size does not grow with the clips.

    Args:
        board: What the stages report.
        cells: (benchmark, name) of every cell.
    """

    def __init__(self, board: JobBoard, cells: list[Cell]) -> None:
        self._board = board
        self._scores = LiveScores(cells)
        self._nodes = NodeNumbers()
        self.clips = self.failed_clips = self.hits = self.computed = self.answers = self.tokens = 0
        self._failures: Counter[str] = Counter()
        self._last = (0.0, 0, 0, dict.fromkeys(board.expected, 0.0))

    def add(self, result: Row, num_caches: int) -> None:
        """Take one finished clip (`rows.RESULT`)."""
        self.clips += 1
        self.failed_clips += has_failed(result)
        if result["status"] == "ok":
            self.hits += num_caches - result["num_misses"]
            self.computed += result["num_computed"]
        else:
            self._failures[result["status"]] += 1
        for answer in result["answers"]:
            self.answers += 1
            self.tokens += (answer.get("prompt_tokens") or 0) + (answer.get("new_tokens") or 0)
            if result["status"] == "ok" and is_failed(answer):
                self._failures[answer["status"]] += 1
        self._scores.add(result["answers"])

    def metrics(self, now_s: float) -> dict[str, float]:
        """All of them by the names under which MLflow shows them.

        Args:
            now_s: Seconds since the job started; rates are those since the last call.
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
            **self._nodes.metrics(self._board.readings, now_s),
        }
        busy_now = {stage: state.count.busy_s for stage, state in states.items()}
        self._last = (now_s, self.clips, self.tokens, busy_now)
        return {name: float(value) for name, value in values.items()}


def _stage_metrics(
    states: Mapping[str, StageState], busy: Mapping[str, float], passed: float
) -> dict[str, float]:
    """Queue lengths, busy shares and counts of the stages."""
    values: dict[str, float] = {}
    for stage, state in states.items():
        values[f"queue/{stage}"] = state.waiting
        values[f"stage_clips/{stage}"] = state.count.finished
        slots = max(state.slots, 1)
        share = (state.count.busy_s - busy.get(stage, 0.0)) / (passed * slots)
        if share <= 0:  # a clip reports its time when it is done; long ones are under way
            share = (state.count.started - state.count.finished) / slots
        values[f"busy_share/{stage}"] = max(0.0, min(1.0, share))
    return values
