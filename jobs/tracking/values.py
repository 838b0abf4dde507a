"""Names and values of what MLflow shows of a run: metrics, parameters, tags."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict

from jobs.results.cell_summary import CellSummary
from jobs.results.facts import JobFacts
from jobs.results.plain import to_plain
from jobs.results.quantities import Comparison
from jobs.results.run_summary import RunSummary


def cell_metrics(cell: CellSummary) -> dict[str, float]:
    """The metrics of one cell by the names under which MLflow shows them."""
    accuracy, versus = cell.accuracy, cell.versus_full or Comparison()
    metrics: dict[str, float | None] = {
        **run_metrics(cell),
        "accuracy": accuracy.value if accuracy else None,
        "accuracy_low": accuracy.low if accuracy else None,
        "accuracy_high": accuracy.high if accuracy else None,
        "accuracy_answered": cell.accuracy_answered,
        "accuracy_macro": cell.accuracy_macro,
        "accuracy_harness": cell.harness_accuracy,
        "versus_full/difference": versus.paired.difference if versus.paired else None,
        "versus_full/p_value": versus.paired.p_value if versus.paired else None,
        "versus_full/detectable_difference": versus.paired.detectable_difference
        if versus.paired
        else None,
        "versus_full/ttft_speedup": versus.ttft_speedup,
        "versus_full/speedup_to_first_token": versus.first_token_speedup,
        "retention/requested": cell.retention_requested,
        "retention/actual": cell.retention_actual,
        "retention/with_newlines": cell.retention_with_newlines,
        "retention/equivalent": cell.equivalent_retention,
        "tokens/total": cell.tokens_total,
        "tokens/kept": cell.tokens_kept,
        "prefill_tflops": cell.prefill_tflops,
    }
    for group, values in cell.accuracy_by.items():
        for value, found in values.items():
            key = f"accuracy/{_name(group)}/{_name(value)}"
            while key in metrics:
                key += "_"
            metrics[key] = found.value
    return _known(metrics)


def run_metrics(summary: RunSummary | CellSummary) -> dict[str, float]:
    """The metrics that a run with several cells has as a whole, and every cell too."""
    counts = summary.counts
    metrics: dict[str, float | None] = {
        "failures": counts.num_failed,
        "failed_clips": counts.num_failed_clips,
        "unparsed": counts.num_unparsed,
        "questions": counts.num_different or None,
        "answers": counts.num_questions,
        "clips": counts.num_clips,
        "cache/hits": summary.cache.hits,
        "cache/misses": summary.cache.misses,
        "memory/peak_gib": summary.peak_gib,
        **{f"throughput/{name}": rate for name, rate in to_plain(summary.throughput).items()},
    }
    for stage, stats in summary.latency_ms.items():
        for name, value in asdict(stats).items():
            if name != "n":
                metrics[f"latency/{stage}_ms_{name}"] = value
    return _known(metrics)


def flatten(tree: object, prefix: str = "") -> dict[str, str]:
    """Nested settings as dotted keys: `{"method": {"name": "tango"}}` -> `method.name`."""
    if isinstance(tree, Mapping) and tree:
        items: Iterator[tuple[object, object]] = iter(tree.items())
    elif isinstance(tree, Sequence) and not isinstance(tree, str) and tree:
        items = iter(enumerate(tree))
    else:
        return {prefix: str(tree)}
    flat: dict[str, str] = {}
    for key, value in items:
        flat |= flatten(value, f"{prefix}.{key}" if prefix else str(key))
    return flat


def tags_of(facts: JobFacts) -> dict[str, str]:
    """What identifies the code and the machine; may differ between attempts, so no parameters."""
    tags = {
        "mlflow.source.git.commit": facts.git_commit,
        "git_commit": facts.git_commit,
        "mlflow.note.content": facts.note,
        "kind": facts.kind,
        "mode": facts.mode,
        "model": facts.model,
        "cache": ", ".join(facts.caches),
        "device": facts.device,
        "left_out": ", ".join(entry.name for entry in facts.skipped),
        **{f"version.{name}": version for name, version in facts.versions.items()},
    }
    return {key: value for key, value in tags.items() if value}


def cell_params(cell: CellSummary, facts: JobFacts) -> dict[str, str]:
    """The settings of one cell of a sweep."""
    return {
        "benchmark.name": cell.benchmark,
        "model.name": facts.model,
        "method.name": cell.method,
        "method.retention": str(cell.retention_requested),
        **flatten(cell.options, "method"),
    }


def _known(metrics: Mapping[str, float | None]) -> dict[str, float]:
    """Metrics that have a value."""
    return {name: value for name, value in metrics.items() if value is not None}


def _name(text: str) -> str:
    """A group or value with only the characters that MLflow allows between two slashes."""
    return re.sub(r"[^\w\-. ]", "_", text, flags=re.ASCII).strip(" .") or "_"
