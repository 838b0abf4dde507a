"""Contents of an MLflow run: metrics, parameters and tags."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict

from jobs.results.cell_summary import CellSummary, RunSummary
from jobs.results.facts import CellFacts, JobFacts
from jobs.results.quantities import Comparison, to_plain
from pipeline.runtime import process


def headline_metrics(cell: CellSummary) -> dict[str, float]:
    """The metrics to see first, rounded: score, difference to `full`, tokens kept, prefill time."""
    paired = cell.versus_full.paired if cell.versus_full else None
    metrics = {
        cell.metric: cell.headline.value if cell.headline else None,
        "vs_full": paired.difference if paired else None,
        "tokens_kept": cell.equivalent_retention,
        "prefill_ms": cell.p50("prefill"),
    }
    return {name: round(value, 4) for name, value in _known(metrics).items()}


def cell_metrics(cell: CellSummary) -> dict[str, float]:
    """Metric name in MLflow -> value, for one cell, the headline metrics first.

    All others are in groups, which the UI shows as sections: the part before the last `/`.
    """
    versus = cell.versus_full or Comparison()
    metrics: dict[str, float | None] = {
        **headline_metrics(cell),
        **{f"scores/{cell.metric}_{n}": getattr(cell, n) for n in ("answered", "macro", "harness")},
        "versus_full/ttft_speedup": versus.ttft_speedup,
        "versus_full/speedup_to_first_token": versus.first_token_speedup,
        "retention/requested": cell.retention_requested,
        "retention/actual": cell.retention_actual,
        "retention/with_newlines": cell.retention_with_newlines,
        "tokens/total": cell.tokens_total,
        "tokens/kept": cell.tokens_kept,
        "compute/prefill_tflops": cell.prefill_tflops,
    }
    for name, paired in {"full": versus.paired, **versus.also}.items():
        for figure in ("difference", "p_value", "detectable_difference") if paired else ():
            metrics[f"versus_full/{name}_{figure}"] = getattr(paired, figure)
    for name, estimate in cell.scores.items():
        metrics |= {f"scores/{name}": estimate.value, f"scores/{name}_low": estimate.low}
        metrics[f"scores/{name}_high"] = estimate.high
    metrics |= run_metrics(cell)
    for name, groups in cell.scores_by.items():
        for group, values in groups.items():
            for value, found in values.items():
                key = f"{name}/{metric_name(group)}/{metric_name(value)}"
                while key in metrics:
                    key += "_"
                metrics[key] = found.value
    return _known(metrics)


def series_points(summary: RunSummary) -> list[tuple[str, float, int]]:
    """Headline metrics over retention: name `<metric>/<method>`, value, retention in per mille."""
    several = len({cell.benchmark for cell in summary.cells}) > 1
    points: dict[str, list[tuple[str, float, int]]] = {}
    for cell in summary.cells:
        parts = [cell.benchmark, cell.series] if several else [cell.series]
        name, step = "/".join(map(metric_name, parts)), round(1000 * cell.retention_requested)
        for key, value in headline_metrics(cell).items():
            points.setdefault(key, []).append((f"{key}/{name}", value, step))
    return [point for series in points.values() for point in series]


def run_metrics(summary: RunSummary | CellSummary) -> dict[str, float]:
    """Metrics that exist both for a run and for each of its cells."""
    counts = summary.counts
    metrics: dict[str, float | None] = {
        "counts/failures": counts.num_failed,
        "counts/failed_clips": counts.num_failed_clips,
        "counts/unparsed": counts.num_unparsed,
        "counts/unread_share": counts.unread_share,
        "counts/questions": counts.num_different or None,
        "counts/answers": counts.num_questions,
        "counts/clips": counts.num_clips,
        "cache/hits": summary.cache.hits,
        "cache/misses": summary.cache.misses,
        "memory/peak_gib": summary.peak_gib,
        **{f"throughput/{name}": rate for name, rate in to_plain(summary.throughput).items()},
    }
    for stage, stats in summary.latency_ms.items():
        quantiles = {name: value for name, value in asdict(stats).items() if name != "n"}
        metrics |= {f"latency/{stage}_ms_{name}": value for name, value in quantiles.items()}
    return _known(metrics)


def metric_name(text: str) -> str:
    """Replace characters that MLflow does not allow in a part of a metric name."""
    return re.sub(r"[^\w\-. ]", "_", text, flags=re.ASCII).strip(" .") or "_"


def _known(metrics: Mapping[str, float | None]) -> dict[str, float]:
    """Drop metrics without a value."""
    return {name: value for name, value in metrics.items() if value is not None}


def flatten(tree: object, prefix: str = "") -> dict[str, str]:
    """Flatten nested settings to dotted keys: `{"method": {"name": "tango"}}` -> `method.name`."""
    if isinstance(tree, Mapping) and (tree or not prefix):
        items: Iterator[tuple[object, object]] = iter(tree.items())
    elif isinstance(tree, Sequence) and not isinstance(tree, str) and tree:
        items = iter(enumerate(tree))
    else:
        return {prefix: str(tree)}
    flat: dict[str, str] = {}
    for key, value in items:
        flat |= flatten(value, f"{prefix}.{key}" if prefix else str(key))
    return flat


def cell_params(cell: CellSummary, facts: JobFacts) -> dict[str, str]:
    """The settings of one cell of a sweep."""
    frames = str(facts.num_frames or cell.num_frames or "")
    return _filled(
        {
            "benchmark.name": cell.benchmark,
            "benchmark.protocol": cell.protocol,
            "model.name": facts.model,
            "model.num_frames": frames,
            "num_frames": frames,
            "method.name": cell.method,
            "method.retention": str(cell.retention_requested),
            **(flatten(cell.options, "method") if cell.options else {}),
        }
    )


def job_tags(kind: str, model: str) -> dict[str, str]:
    """Tags of a job from its start, also for the user and the UI's column "Source".

    Args:
        kind: The command.
        model: Name of the model.
    """
    return {
        "kind": kind,
        "mlflow.source.name": f"tango {kind}",
        "mlflow.source.type": "LOCAL",
        "mlflow.user": process.user(),
        "model": model,
    }


def tags_of(facts: JobFacts, cell: CellFacts | None = None) -> dict[str, str]:
    """Tags of a finished run, or of one of its cells."""
    cells = facts.cells if cell is None else (cell,)
    tags = {
        **job_tags(facts.kind, facts.model),
        "num_frames": str(facts.num_frames or ""),
        "mode": facts.mode,
        "benchmark": _listed(one.benchmark for one in cells),
        "method": _listed(one.method for one in cells),
        "protocol": _listed(one.protocol for one in cells if one.protocol),
        "mlflow.source.git.commit": facts.git_commit,
        "git_commit": facts.git_commit,
        "cache": ", ".join(facts.caches),
        "device": facts.device,
        "note": facts.note,
        "left_out": ", ".join(entry.name for entry in facts.skipped),
    }
    if cell is not None:
        tags |= {"retention": f"{cell.retention:g}", "cell": cell.name}
        tags |= {"cache": cell.cache, "left_out": ""} if len(facts.cells) > 1 else {}
    return _filled(tags)


def _listed(names: Iterable[str]) -> str:
    return ", ".join(dict.fromkeys(names))


def _filled(values: Mapping[str, str]) -> dict[str, str]:
    return {key: value for key, value in values.items() if value}
