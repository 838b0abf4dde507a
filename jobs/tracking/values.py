"""Names and values of what MLflow shows of a run: metrics, parameters, tags."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict

from jobs.results.cell_summary import CellSummary
from jobs.results.facts import CellFacts, JobFacts
from jobs.results.plain import to_plain
from jobs.results.quantities import Comparison
from jobs.results.run_summary import RunSummary
from pipeline import process


def cell_metrics(cell: CellSummary) -> dict[str, float]:
    """The metrics of one cell by the names under which MLflow shows them."""
    versus = cell.versus_full or Comparison()
    metrics: dict[str, float | None] = {
        **run_metrics(cell),
        f"{cell.metric}_answered": cell.answered,
        f"{cell.metric}_macro": cell.macro,
        f"{cell.metric}_harness": cell.harness,
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
    for name, estimate in cell.scores.items():
        metrics[name] = estimate.value
        metrics[f"{name}_low"], metrics[f"{name}_high"] = estimate.low, estimate.high
    for name, paired in versus.also.items():
        metrics[f"versus_full/{name}_difference"] = paired.difference
        metrics[f"versus_full/{name}_p_value"] = paired.p_value
    for name, groups in cell.scores_by.items():
        for group, values in groups.items():
            for value, found in values.items():
                key = f"{name}/{metric_name(group)}/{metric_name(value)}"
                while key in metrics:
                    key += "_"
                metrics[key] = found.value
    return _known(metrics)


def parent_metrics(summary: RunSummary) -> dict[str, float]:
    """The metrics of a whole run: those of its cell, or its totals and the cells' headlines.

    `accuracy` of several cells is that of all their answers, so that the column is filled for every
    run; what to compare is `accuracy/<cell>`. Cells with another headline have another column.
    """
    if len(summary.cells) == 1:
        return {**cell_metrics(summary.cells[0]), **run_metrics(summary)}
    metrics = run_metrics(summary)
    benchmarks = {cell.benchmark for cell in summary.cells}
    sums: dict[str, float] = {}
    counted: dict[str, int] = {}
    for cell in summary.cells:
        if cell.headline is not None:
            name, found = cell.metric, cell.headline
            key = cell_score_key(name, cell.benchmark, cell.name, several=len(benchmarks) > 1)
            metrics[key] = found.value
            sums[name] = sums.get(name, 0.0) + found.value * found.num_questions
            counted[name] = counted.get(name, 0) + found.num_questions
    return {**metrics, **{name: total / counted[name] for name, total in sums.items()}}


def cell_score_key(metric: str, benchmark: str, cell: str, *, several: bool) -> str:
    """Name of a cell's headline on the run that it is part of.

    Args:
        metric: Name of the headline.
        benchmark: Of the cell.
        cell: Name of the cell.
        several: Whether the run has several benchmarks.
    """
    prefix = f"{metric}/{metric_name(benchmark)}" if several else metric
    return f"{prefix}/{metric_name(cell)}"


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
    return _filled(
        {
            **_subject(facts, facts.cells),
            "mlflow.source.git.commit": facts.git_commit,
            "git_commit": facts.git_commit,
            "mode": facts.mode,
            "cache": ", ".join(facts.caches),
            "device": facts.device,
            "left_out": ", ".join(entry.name for entry in facts.skipped),
            **{f"version.{name}": version for name, version in facts.versions.items()},
            **{f"float32.{name}": value for name, value in facts.float32_products.items()},
        }
    )


def cell_tags(cell: CellFacts, facts: JobFacts) -> dict[str, str]:
    """The tags of one cell of a sweep: those of the run, with what is its own."""
    own = {"retention": f"{cell.retention:g}", "cache": cell.cache, "left_out": ""}
    return _filled({**tags_of(facts), **_subject(facts, [cell]), **own})


def job_tags(job: object, kind: str) -> dict[str, str]:
    """The tags of a job that has only started, from its recipe.

    Args:
        job: Plain data of `job.yaml`.
        kind: The command.
    """
    recipe = job if isinstance(job, Mapping) else {}
    one, many = recipe.get("benchmark"), recipe.get("benchmarks") or ()
    methods = [recipe.get("method"), *(recipe.get("methods") or ())]
    model = recipe.get("model") or {}
    return _filled(
        {
            **source_tags(kind),
            "model": str(model.get("name", "")),
            "benchmark": _listed(str(own["name"]) for own in (one, *many) if own),
            "method": _listed(str(own["name"]) for own in methods if own),
            "num_frames": str(model.get("num_frames") or ""),
            "mode": str(recipe.get("mode", "")),
        }
    )


def source_tags(kind: str) -> dict[str, str]:
    """What the columns "Source" and "Type" of the UI show."""
    return {
        "kind": kind,
        "mlflow.source.name": f"tango {kind}",
        "mlflow.source.type": "LOCAL",
        "mlflow.user": process.user(),
    }


def cell_params(cell: CellSummary, facts: JobFacts) -> dict[str, str]:
    """The settings of one cell of a sweep."""
    frames = facts.num_frames or cell.num_frames
    return _filled(
        {
            "benchmark.name": cell.benchmark,
            "benchmark.protocol": cell.protocol,
            "model.name": facts.model,
            "model.num_frames": str(frames or ""),
            "num_frames": str(frames or ""),
            "method.name": cell.method,
            "method.retention": str(cell.retention_requested),
            **(flatten(cell.options, "method") if cell.options else {}),
        }
    )


def precompute_metrics(counts: Mapping[str, object]) -> dict[str, float]:
    """The metrics of a run that only filled caches, from its `summary.json`."""
    return {
        name.removeprefix("num_"): float(value)
        for name, value in counts.items()
        if name.startswith("num_") and isinstance(value, (int, float))
    }


def _subject(facts: JobFacts, cells: Sequence[CellFacts]) -> dict[str, str]:
    """Tags to search and to group by: what was measured, on what, by which command."""
    return {
        **source_tags(facts.kind),
        "model": facts.model,
        "benchmark": _listed(cell.benchmark for cell in cells),
        "method": _listed(cell.method for cell in cells),
        "protocol": _listed(cell.protocol for cell in cells if cell.protocol),
        "num_frames": str(facts.num_frames or ""),
    }


def _listed(names: Iterable[str]) -> str:
    """Every name once."""
    return ", ".join(dict.fromkeys(names))


def _filled(values: Mapping[str, str]) -> dict[str, str]:
    """Values that say something."""
    return {key: value for key, value in values.items() if value}


def _known(metrics: Mapping[str, float | None]) -> dict[str, float]:
    """Metrics that have a value."""
    return {name: value for name, value in metrics.items() if value is not None}


def metric_name(text: str) -> str:
    """A group or value with only the characters that MLflow allows between two slashes."""
    return re.sub(r"[^\w\-. ]", "_", text, flags=re.ASCII).strip(" .") or "_"
