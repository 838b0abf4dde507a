"""The summary of one cell, and its form in `summary.json`.

Keys that a file of another version has in addition are ignored; keys that an older version did not
write mean "unknown".
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Annotated, Any, ClassVar

from pydantic import BeforeValidator

from jobs.results import quantities
from jobs.results.facts import SkippedMethod, WorkCounts
from tango_core.benchmarks import facts_of
from tango_core.errors import InputError
from tango_core.metrics import ACCURACY, Estimate
from tango_core.metrics import Comparison as ScoreDifference

BASELINE = "full"


def series_of(name: str) -> str:
    """The name of a cell without its retention."""
    return " ".join(word for word in name.split(" ") if not word.startswith("r="))


_Comparison = Annotated[quantities.Comparison, BeforeValidator(quantities.Comparison.from_json)]
# Fields of the headline and their keys; where it is not accuracy, these say "score" instead.
_HEADLINE_KEYS = {
    "answered": "accuracy_answered",
    "macro": "accuracy_macro",
    "harness": "harness_accuracy",
    "cross": "accuracy_cross",
}
# Keys that a cell has beside others of several runs; its own run's facts hold them.
_OF_THE_RUN = (
    *("run_id", "model", "num_frames", "input_size"),
    *("decoder_shape", "checkpoint", "versus"),
)


@dataclass(frozen=True, kw_only=True)
class CellSummary:
    """The numbers of one cell: one method setting on one benchmark.

    Shares and scores are in [0, 1]; `None` means not known or not measured. The keys of what
    belongs to the headline say "score" instead of "accuracy" where the headline is another metric.

    Attributes:
        name: JSON key `cell`; unique within the benchmark, with options and retention.
        benchmark: Entry of `BENCHMARKS`.
        protocol: Whose prompts and answer rules were used; "" if unknown.
        method: Entry of `METHODS`.
        options: All options of the method except its retention.
        metric: Name of the headline, `accuracy` for most benchmarks.
        scores: Name of each metric of the benchmark -> its strict value with its 95 % interval, the
            headline first (accuracy also under the keys `accuracy` and `accuracy_ci95`).
        answered: The headline over the replies that could be read. JSON key `accuracy_answered`.
        macro: Mean of the headline over the values of a group, where the benchmark's authors
            average so. JSON key `accuracy_macro`.
        harness: What the harness of the protocol would have printed. JSON key `harness_accuracy`.
        scores_by: Metric -> group of the questions -> value -> the metric there; of accuracy under
            the key `accuracy_by`.
        cross: The headline by two groups at once. JSON key `accuracy_cross`.
        counts: Questions by outcome; JSON has its `unread_share` beside them.
        readings: How the replies were read.
        retention_requested: Share of the visual tokens asked for, in (0, 1].
        retention_actual: Share that entered the language model.
        retention_with_newlines: The same with the newline tokens of the model.
        equivalent_retention: Share averaged over the layers of the language model.
        tokens_total: Visual tokens of all clips.
        tokens_kept: How many of them were kept.
        tokens_with_newlines: How many were kept, with newline tokens.
        clip_text_tokens: Text tokens that belong to the clips, which no method drops: time stamps,
            labels and marks of frames; in no share of tokens.
        latency_ms: Latency per stage.
        cache: Cache hits and misses.
        throughput: Rates; a cell has no wall-clock time of its own.
        first_token_ms: Whole time to the first token of a question: vision, pruning and language
            model. In profile mode the median of the sums, in throughput mode the sum of the
            medians; `None` where a part was not measured, such as vision of cached clips.
        encoder_tflops: Mean cost of encoding a clip, with what merging inside the encoder saves;
            `None` for cached clips.
        prefill_tflops: Mean cost of prefilling one question from nothing.
        reads_question: Whether a clip is pruned once per question, so that `compress` in
            `latency_ms` is the time of one question.
        peak_gib: Largest memory in GiB.
        peak_of: Whose memory: `"device"` or `"process"`.
        versus_full: Paired comparison with the unpruned baseline `full`.
        questions_digest: What stands for the questions that were asked: equal in two cells exactly
            where these are the same; "" if unknown.
        run_id: Run that the cell is of.
        model: Entry of `MODELS`.
        num_frames: Frames per clip.
        input_size: As in `JobFacts`.
        llm_shape: Layers and width of the language model.
        checkpoint: As in `JobFacts`.
        versus: Further baseline -> comparison, as `tango report --baseline` asks for.
    """

    JSON_KEYS: ClassVar[Mapping[str, str]] = {
        "name": "cell",
        "llm_shape": "decoder_shape",
        **_HEADLINE_KEYS,
    }

    # In the order of the keys of `summary.json`.
    name: str
    benchmark: str
    protocol: str = ""
    method: str
    options: Mapping[str, Any] = field(default_factory=dict)
    metric: str = ACCURACY.name
    scores: quantities.Scores = field(default_factory=dict)
    answered: float | None = None
    macro: float | None = None
    harness: float | None = None
    scores_by: Mapping[str, quantities.ByGroup] = field(default_factory=dict)
    cross: quantities.CrossTable = field(default_factory=dict)
    counts: quantities.QuestionCounts = field(default_factory=quantities.QuestionCounts)
    readings: quantities.Readings = field(default_factory=quantities.Readings)
    retention_requested: float
    retention_actual: float | None = None
    retention_with_newlines: float | None = None
    equivalent_retention: float | None = None
    tokens_total: int = 0
    tokens_kept: int = 0
    tokens_with_newlines: int | None = None
    clip_text_tokens: int = 0
    latency_ms: quantities.Latencies = field(default_factory=dict)
    cache: quantities.CacheCounts = field(default_factory=quantities.CacheCounts)
    throughput: quantities.Throughput = field(default_factory=quantities.Throughput)
    first_token_ms: float | None = None
    encoder_tflops: float | None = None
    prefill_tflops: float | None = None
    reads_question: bool = False
    peak_gib: float | None = None
    peak_of: str | None = None
    versus_full: _Comparison | None = None
    questions_digest: str = ""
    run_id: str = ""
    model: str = ""
    num_frames: int | None = None
    input_size: str = ""
    llm_shape: tuple[int, int] | None = None
    checkpoint: str = ""
    versus: Mapping[str, _Comparison | None] = field(default_factory=dict)

    @property
    def headline(self) -> Estimate | None:
        """Value of the headline; `None` if no question has one."""
        return self.scores.get(self.metric)

    @property
    def accuracy(self) -> Estimate | None:
        """Strict accuracy; `None` for a benchmark whose replies are not right or wrong."""
        return self.scores.get(ACCURACY.name)

    @property
    def headline_by(self) -> quantities.ByGroup:
        """The headline by group of the questions."""
        return self.scores_by.get(self.metric, {})

    @property
    def is_baseline(self) -> bool:
        """Whether the cell keeps all tokens."""
        return self.method == BASELINE

    def paired_in(self, metric: str) -> ScoreDifference | None:
        """Difference to `full` in one metric."""
        versus = self.versus_full or quantities.Comparison()
        return versus.paired if metric == self.metric else versus.also.get(metric)

    @property
    def paired(self) -> dict[str, ScoreDifference | None]:
        """Differences in the headline to `full` and to further baselines, by name."""
        every = {BASELINE: self.versus_full, **self.versus}
        return {name: versus.paired if versus else None for name, versus in every.items()}

    @property
    def series(self) -> str:
        """The name without the retention: the method with the options that the recipe names."""
        return series_of(self.name)

    def p50(self, stage: str) -> float | None:
        """Median latency of a stage in ms; `None` if it was not measured."""
        stats = self.latency_ms.get(stage)
        return None if stats is None else stats.p50

    def to_json(self, *, with_run: bool = False) -> quantities.Json:
        """Plain data for `summary.json`.

        Args:
            with_run: Whether to add the run and all baselines, for a summary of several runs.
        """
        data: quantities.Json = {}
        accuracy = self.accuracy
        for key, value in quantities.with_counts(quantities.fields_to_plain(self)).items():
            if key == "scores":
                data["accuracy"] = accuracy.value if accuracy else None
                data["accuracy_ci95"] = [accuracy.low, accuracy.high] if accuracy else None
                value = _values_to_json(self.scores)
            elif key == "scores_by":
                data["accuracy_by"] = value.get(ACCURACY.name, {})
                value = {
                    name: {group: _values_to_json(own) for group, own in groups.items()}
                    for name, groups in self.scores_by.items()
                    if groups and name != ACCURACY.name
                }
            elif key == "readings":
                data["unread_share"] = self.counts.unread_share
            data[key] = value
        if self.metric != ACCURACY.name:
            for key in _HEADLINE_KEYS.values():
                data[key.replace("accuracy", "score")] = data.pop(key)
        return {key: value for key, value in data.items() if with_run or key not in _OF_THE_RUN}

    @classmethod
    def from_json(cls, data: Mapping[str, Any], *, run_id: str, model: str) -> CellSummary:
        """Read a cell of a run's `summary.json`."""
        counts = quantities.from_plain(quantities.QuestionCounts, data)
        by = {ACCURACY.name: data.get("accuracy_by"), **(data.get("scores_by") or {})}
        read = {
            key: data.get(key, data.get(key.replace("accuracy", "score")))
            for key in _HEADLINE_KEYS.values()
        }
        read["scores_by"] = {name: own for name, own in by.items() if own}
        if "scores" not in data and data.get("accuracy") is not None:
            # Written before there were other metrics.
            asked = counts.num_scored or counts.num_questions
            old = {"value": data["accuracy"], "ci95": data["accuracy_ci95"], "n": asked}
            read["scores"] = {ACCURACY.name: old}
        run = {"run_id": run_id, "model": model}
        return quantities.from_plain(cls, {**data, **read}, counts=counts, **run)


def _values_to_json(scores: quantities.Scores) -> quantities.Json:
    return {name: quantities.estimate_to_json(one, "value") for name, one in scores.items()}


# Heading of a column whose rows have different metrics; their names stand beside the benchmarks.
SCORE = "score"


def metric_title(cell: CellSummary, metric: str = "") -> str:
    """What readers call a metric of a cell.

    Args:
        cell: The cell.
        metric: Name of the metric; "" for the headline.
    """
    name = metric or cell.metric
    titles = {one.name: one.title for one in facts_of(cell.benchmark).metrics}
    return titles.get(name, name)


def headline_title(cells: Sequence[CellSummary]) -> str:
    """What readers call the headline of all cells: its name, or `score` where they differ."""
    titles = {metric_title(cell) for cell in cells}
    return titles.pop() if len(titles) == 1 else SCORE if titles else ACCURACY.title


def have_one_headline(cells: Sequence[CellSummary]) -> bool:
    """Whether all cells have the same headline, so that their values are on one scale."""
    return len({cell.metric for cell in cells}) < 2


@dataclass(frozen=True, kw_only=True)
class RunSummary:
    """The numbers of one run, or of several side by side: totals and cells.

    Attributes:
        run_id: Name of the run directory, or a title such as `"comparison of 2 runs"`.
        kind: The command that made it; `"comparison"` for several runs.
        runs: Names of the runs that are compared; empty for one run.
        model: Entry of `MODELS`.
        mode: `"throughput"` or `"profile"`.
        note: A sentence shown with every result.
        skipped: Methods that the model cannot run. JSON key `left_out`.
        counts: Questions by outcome, over all cells.
        latency_ms: Latency per stage, over all cells.
        cache: Cache hits and misses, over all cells.
        throughput: Rates over the wall-clock time of the run.
        work: What the run did, as its facts say; `None` if they do not.
        peak_gib: Largest memory in GiB.
        peak_of: Whose memory: `"device"` or `"process"`.
        failures: Why answers failed.
        cells: One summary per cell, in the order of the recipe.
    """

    JSON_KEYS: ClassVar[Mapping[str, str]] = {"skipped": "left_out"}

    # In the order of the keys of `summary.json`.
    run_id: str
    kind: str = ""
    runs: tuple[str, ...] = ()
    model: str
    mode: str = "throughput"
    note: str = ""
    skipped: tuple[SkippedMethod, ...] = ()
    counts: quantities.QuestionCounts = field(default_factory=quantities.QuestionCounts)
    latency_ms: quantities.Latencies = field(default_factory=dict)
    cache: quantities.CacheCounts = field(default_factory=quantities.CacheCounts)
    throughput: quantities.Throughput = field(default_factory=quantities.Throughput)
    work: WorkCounts | None = None
    peak_gib: float | None = None
    peak_of: str | None = None
    failures: quantities.FailureList = field(default_factory=quantities.FailureList)
    cells: tuple[CellSummary, ...]

    def to_json(self) -> quantities.Json:
        """Plain data for `summary.json`.

        The top level also holds the fields of the cell that the run is about, if there is one.
        """
        run = quantities.with_counts(quantities.fields_to_plain(self))
        if self.runs:
            return {**run, "cells": [cell.to_json(with_run=True) for cell in self.cells]}
        cells, _ = run.pop("cells"), run.pop("runs")
        cell = main_cell(self.cells, self.kind)
        if len(self.cells) == 1 and cell is not None:
            run = {**cell.to_json(), **run}
        elif cell is not None:
            run = {**run, **cell.to_json(), "throughput": run["throughput"]}
        return {**run, "cells": cells}

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> RunSummary:
        """Read the `summary.json` of a run.

        Raises:
            KeyError: If a key that every version wrote is missing.
        """
        run_id, model = data["run_id"], data["model"]
        counts = quantities.from_plain(quantities.QuestionCounts, data)
        cells = [CellSummary.from_json(one, run_id=run_id, model=model) for one in data["cells"]]
        return quantities.from_plain(cls, data, counts=counts, cells=tuple(cells))


def main_cell(cells: Sequence[CellSummary], kind: str) -> CellSummary | None:
    """The cell that a run is about; `None` for a sweep.

    A profile that `tango evaluate` made measures all tokens beside the method; it is about the
    method.
    """
    if len(cells) == 1:
        return cells[0]
    if kind != "evaluate":
        return None
    (cell,) = (cell for cell in cells if not cell.is_baseline)
    return cell


def parse_summary(content: bytes, run: object) -> RunSummary:
    """Parse the `summary.json` of a run.

    Args:
        content: Content of the file.
        run: Directory or URL of the run, for the message.

    Raises:
        InputError: If it is damaged.
    """
    try:
        return RunSummary.from_json(json.loads(content))
    except (ValueError, LookupError, TypeError, AttributeError) as error:
        raise InputError(
            f"{run}/summary.json is damaged ({type(error).__name__}: {error}); write it again "
            f"with `tango report {run}`"
        ) from error
