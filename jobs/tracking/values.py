"""Names and values of what MLflow shows of a run: metrics, parameters, tags."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from jobs.results.facts import JobFacts


def cell_metrics(cell: Mapping[str, Any]) -> dict[str, float]:
    """The metrics of one cell by the names under which MLflow shows them."""
    versus = cell.get("versus_full") or {}
    low, high = cell["accuracy_ci95"] or (None, None)
    metrics = {
        **run_metrics(cell),
        "accuracy": cell["accuracy"],
        "accuracy_low": low,
        "accuracy_high": high,
        "accuracy_answered": cell["accuracy_answered"],
        "accuracy_macro": cell.get("accuracy_macro"),
        "accuracy_harness": cell.get("harness_accuracy"),
        "versus_full/difference": versus.get("difference"),
        "versus_full/p_value": versus.get("p_value"),
        "versus_full/ttft_speedup": versus.get("ttft_speedup"),
        "versus_full/speedup_to_first_token": versus.get("speedup_to_first_token"),
        "retention/requested": cell["retention_requested"],
        "retention/actual": cell["retention_actual"],
        "retention/with_newlines": cell.get("retention_with_newlines"),
        "retention/equivalent": cell["equivalent_retention"],
        "tokens/total": cell["tokens_total"],
        "tokens/kept": cell["tokens_kept"],
        "prefill_tflops": cell["prefill_tflops"],
    }
    for group, values in cell["accuracy_by"].items():
        for value, entry in values.items():
            key = f"accuracy/{_name(group)}/{_name(value)}"
            while key in metrics:
                key += "_"
            metrics[key] = entry["accuracy"]
    return _known(metrics)


def run_metrics(summary: Mapping[str, Any]) -> dict[str, float]:
    """The metrics that a run with several cells has as a whole."""
    metrics = {
        "failures": summary["num_failed"],
        "failed_clips": summary["num_failed_clips"],
        "unparsed": summary["num_unparsed"],
        "questions": summary["num_questions"],
        "clips": summary["num_clips"],
        "cache/hits": summary["cache"]["hits"],
        "cache/misses": summary["cache"]["misses"],
        "memory/peak_gib": summary.get("peak_gib"),
        **{f"throughput/{name}": value for name, value in summary["throughput"].items()},
    }
    for stage, times in summary["latency_ms"].items():
        for statistic in ("p50", "p90", "p95", "mean"):
            metrics[f"latency/{stage}_ms_{statistic}"] = times[statistic]
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
        "left_out": ", ".join(entry.name for entry in facts.left_out),
        **{f"version.{name}": version for name, version in facts.versions.items()},
    }
    return {key: value for key, value in tags.items() if value}


def cell_params(cell: Mapping[str, Any], facts: JobFacts) -> dict[str, str]:
    """The settings of one cell of a sweep."""
    return {
        "benchmark.name": str(cell["benchmark"]),
        "model.name": facts.model,
        "method.name": str(cell["method"]),
        "method.retention": str(cell["retention_requested"]),
        **flatten(cell["options"] or {}, "method"),
    }


def _known(metrics: Mapping[str, float | None]) -> dict[str, float]:
    """Metrics that have a value."""
    return {name: value for name, value in metrics.items() if value is not None}


def _name(text: str) -> str:
    """A group or value with only the characters that MLflow allows between two slashes."""
    return re.sub(r"[^\w\-. ]", "_", text, flags=re.ASCII).strip(" .") or "_"
