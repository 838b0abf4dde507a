"""The summary of one cell, and its form in `summary.json`.

Keys that a file of another version has in addition are ignored; keys that an older version did not
write mean "unknown".
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

from jobs.results.quantities import (
    ByGroup,
    CacheCounts,
    Comparison,
    CrossTable,
    Json,
    Latencies,
    QuestionCounts,
    Throughput,
    accuracy_of,
    groups_from_json,
    groups_to_json,
    latencies_from_json,
    latencies_to_json,
)
from tango_core.metrics import Accuracy

BASELINE = "full"


@dataclass(frozen=True, kw_only=True)
class CellSummary:
    """The numbers of one cell: one method setting on one benchmark.

    Shares are in [0, 1]; `None` means not known or not measured.

    Attributes:
        name: JSON key `cell`; unique within the benchmark, with options and retention.
        benchmark: Entry of `BENCHMARKS`.
        protocol: Whose prompts and answer rules were used; "" if unknown.
        method: Entry of `METHODS`.
        options: All options of the method except its retention.
        accuracy: Strict accuracy with its 95 % interval (keys `accuracy`, `accuracy_ci95`).
        accuracy_answered: Accuracy over the replies that could be read.
        accuracy_macro: Mean over the values of a group, where the benchmark's authors average so.
        harness_accuracy: What the harness of the protocol would have printed.
        accuracy_by: Accuracy by group of the questions.
        accuracy_cross: Accuracy by two groups at once.
        counts: Questions by outcome.
        retention_requested: Share of the visual tokens asked for, in (0, 1].
        retention_actual: Share that entered the language model.
        retention_with_newlines: The same with the newline tokens of the model.
        equivalent_retention: Share averaged over the layers of the language model.
        tokens_total: Visual tokens of all clips.
        tokens_kept: How many of them were kept.
        tokens_with_newlines: How many were kept, with newline tokens.
        latency_ms: Latency per stage.
        cache: Cache hits and misses.
        throughput: Rates; a cell has no wall-clock time of its own.
        prefill_tflops: Mean cost of prefilling one question from nothing.
        peak_gib: Largest memory in GiB.
        peak_of: Whose memory: `"device"` or `"process"`.
        versus_full: Paired comparison with all tokens.
        run_id: Run that the cell is of.
        model: Entry of `MODELS`.
        num_frames: Frames per clip.
        llm_shape: Layers and width of the language model.
        versus: Further baseline -> comparison, as `tango report --baseline` asks for.
    """

    name: str
    benchmark: str
    method: str
    retention_requested: float
    protocol: str = ""
    options: Mapping[str, Any] = field(default_factory=dict)
    accuracy: Accuracy | None = None
    accuracy_answered: float | None = None
    accuracy_macro: float | None = None
    harness_accuracy: float | None = None
    accuracy_by: ByGroup = field(default_factory=dict)
    accuracy_cross: CrossTable = field(default_factory=dict)
    counts: QuestionCounts = field(default_factory=QuestionCounts)
    retention_actual: float | None = None
    retention_with_newlines: float | None = None
    equivalent_retention: float | None = None
    tokens_total: int = 0
    tokens_kept: int = 0
    tokens_with_newlines: int | None = None
    latency_ms: Latencies = field(default_factory=dict)
    cache: CacheCounts = field(default_factory=CacheCounts)
    throughput: Throughput = field(default_factory=Throughput)
    prefill_tflops: float | None = None
    peak_gib: float | None = None
    peak_of: str | None = None
    versus_full: Comparison | None = None
    run_id: str = ""
    model: str = ""
    num_frames: int | None = None
    llm_shape: tuple[int, int] | None = None
    versus: Mapping[str, Comparison | None] = field(default_factory=dict)

    @property
    def is_baseline(self) -> bool:
        """Whether the cell keeps all tokens."""
        return self.method == BASELINE

    @property
    def series(self) -> str:
        """The name without the retention: the method with the options that the recipe names."""
        return " ".join(word for word in self.name.split(" ") if not word.startswith("r="))

    def to_json(self) -> Json:
        """Plain data for the `summary.json` of the cell's own run."""
        accuracy = self.accuracy
        cross = {
            outer: {value: groups_to_json(groups) for value, groups in values.items()}
            for outer, values in self.accuracy_cross.items()
        }
        return {
            "cell": self.name,
            "benchmark": self.benchmark,
            "protocol": self.protocol,
            "method": self.method,
            "options": dict(self.options),
            "accuracy": None if accuracy is None else accuracy.value,
            "accuracy_ci95": None if accuracy is None else [accuracy.low, accuracy.high],
            "accuracy_answered": self.accuracy_answered,
            "accuracy_macro": self.accuracy_macro,
            "harness_accuracy": self.harness_accuracy,
            "accuracy_by": groups_to_json(self.accuracy_by),
            "accuracy_cross": cross,
            **asdict(self.counts),
            "retention_requested": self.retention_requested,
            "retention_actual": self.retention_actual,
            "retention_with_newlines": self.retention_with_newlines,
            "equivalent_retention": self.equivalent_retention,
            "tokens_total": self.tokens_total,
            "tokens_kept": self.tokens_kept,
            "tokens_with_newlines": self.tokens_with_newlines,
            "latency_ms": latencies_to_json(self.latency_ms),
            "cache": asdict(self.cache),
            "throughput": self.throughput.to_json(),
            "prefill_tflops": self.prefill_tflops,
            "peak_gib": self.peak_gib,
            "peak_of": self.peak_of,
            "versus_full": None if self.versus_full is None else self.versus_full.to_json(),
        }

    def to_json_with_run(self) -> Json:
        """Plain data for a `summary.json` of several runs: also the run and all baselines."""
        return {
            **self.to_json(),
            "run_id": self.run_id,
            "model": self.model,
            "num_frames": self.num_frames,
            "decoder_shape": self.llm_shape,
            "versus": {
                name: None if versus is None else versus.to_json()
                for name, versus in self.versus.items()
            },
        }

    @classmethod
    def from_json(cls, data: Mapping[str, Any], *, run_id: str, model: str) -> CellSummary:
        """Read a cell of a run's `summary.json`."""
        counts = QuestionCounts.from_json(data)
        accuracy = None
        if data.get("accuracy") is not None:
            asked = counts.num_scored or counts.num_questions
            accuracy = accuracy_of(data["accuracy"], data["accuracy_ci95"], asked)
        versus = data.get("versus_full")
        return cls(
            name=data["cell"],
            benchmark=data["benchmark"],
            method=data["method"],
            retention_requested=data["retention_requested"],
            protocol=data.get("protocol") or "",
            options=data.get("options") or {},
            accuracy=accuracy,
            accuracy_answered=data.get("accuracy_answered"),
            accuracy_macro=data.get("accuracy_macro"),
            harness_accuracy=data.get("harness_accuracy"),
            accuracy_by=groups_from_json(data.get("accuracy_by") or {}),
            accuracy_cross={
                outer: {value: groups_from_json(groups) for value, groups in values.items()}
                for outer, values in (data.get("accuracy_cross") or {}).items()
            },
            counts=counts,
            retention_actual=data.get("retention_actual"),
            retention_with_newlines=data.get("retention_with_newlines"),
            equivalent_retention=data.get("equivalent_retention"),
            tokens_total=data.get("tokens_total") or 0,
            tokens_kept=data.get("tokens_kept") or 0,
            tokens_with_newlines=data.get("tokens_with_newlines"),
            latency_ms=latencies_from_json(data.get("latency_ms") or {}),
            cache=CacheCounts(**(data.get("cache") or {})),
            throughput=Throughput.from_json(data.get("throughput") or {}),
            prefill_tflops=data.get("prefill_tflops"),
            peak_gib=data.get("peak_gib"),
            peak_of=data.get("peak_of"),
            versus_full=None if versus is None else Comparison.from_json(versus),
            run_id=run_id,
            model=model,
        )
