"""The summary of one cell, and its form in `summary.json`.

Keys that a file of another version has in addition are ignored; keys that an older version did not
write mean "unknown".
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, ClassVar

from jobs.results.plain import Json, fields_to_plain, from_plain, with_counts
from jobs.results.quantities import (
    ByGroup,
    CacheCounts,
    Comparison,
    CrossTable,
    Latencies,
    QuestionCounts,
    Throughput,
    accuracy_of,
    groups_from_json,
    measured_from_json,
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
        questions_digest: What stands for the questions that were asked: equal in two cells exactly
            where these are the same; "" if unknown.
        run_id: Run that the cell is of.
        model: Entry of `MODELS`.
        num_frames: Frames per clip.
        input_size: As in `JobFacts`.
        llm_shape: Layers and width of the language model.
        versus: Further baseline -> comparison, as `tango report --baseline` asks for.
    """

    JSON_KEYS: ClassVar[Mapping[str, str]] = {"name": "cell", "llm_shape": "decoder_shape"}

    # In the order of the keys of `summary.json`.
    name: str
    benchmark: str
    protocol: str = ""
    method: str
    options: Mapping[str, Any] = field(default_factory=dict)
    accuracy: Accuracy | None = None
    accuracy_answered: float | None = None
    accuracy_macro: float | None = None
    harness_accuracy: float | None = None
    accuracy_by: ByGroup = field(default_factory=dict)
    accuracy_cross: CrossTable = field(default_factory=dict)
    counts: QuestionCounts = field(default_factory=QuestionCounts)
    retention_requested: float
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
    questions_digest: str = ""
    run_id: str = ""
    model: str = ""
    num_frames: int | None = None
    input_size: str = ""
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

    def p50(self, stage: str) -> float | None:
        """Median latency of a stage in ms; `None` if it was not measured."""
        stats = self.latency_ms.get(stage)
        return None if stats is None else stats.p50

    def to_json(self) -> Json:
        """Plain data for the `summary.json` of the cell's own run."""
        data = self.to_json_with_run()
        for key in ("run_id", "model", "num_frames", "input_size", "decoder_shape", "versus"):
            del data[key]
        return data

    def to_json_with_run(self) -> Json:
        """Plain data for a `summary.json` of several runs: also the run and all baselines."""
        data: Json = {}
        for key, value in with_counts(fields_to_plain(self)).items():
            data[key] = value
            if key == "accuracy":
                data |= {key: value and value["accuracy"], "accuracy_ci95": value and value["ci95"]}
        return data

    @classmethod
    def from_json(cls, data: Mapping[str, Any], *, run_id: str, model: str) -> CellSummary:
        """Read a cell of a run's `summary.json`."""
        measured = measured_from_json(data)
        accuracy = None
        if data.get("accuracy") is not None:
            asked = measured["counts"].num_scored or measured["counts"].num_questions
            accuracy = accuracy_of(data["accuracy"], data["accuracy_ci95"], asked)
        versus = data.get("versus_full")
        return from_plain(
            cls,
            data,
            **measured,
            accuracy=accuracy,
            accuracy_by=groups_from_json(data.get("accuracy_by") or {}),
            accuracy_cross={
                outer: {value: groups_from_json(groups) for value, groups in values.items()}
                for outer, values in (data.get("accuracy_cross") or {}).items()
            },
            versus_full=None if versus is None else Comparison.from_json(versus),
            run_id=run_id,
            model=model,
        )
