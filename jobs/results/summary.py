"""From the answers of a run to its numbers: `summary.json`."""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from jobs.results.facts import CellFacts, JobFacts
from jobs.results.measurements import (
    cache_counts,
    clips,
    latencies,
    normalize,
    peak_memory,
    prefill_tflops,
    speed_ups,
    throughput,
    token_counts,
)
from jobs.results.scores import (
    cross_accuracy,
    harness_accuracy,
    macro_accuracy,
    plain_accuracies,
    read_groups,
)
from pipeline.stages.declarations import FAILED
from tango_core.metrics import (
    Comparison,
    accuracy_by_group,
    clustered_accuracy,
    compare_paired,
)

Summary = dict[str, Any]

SUMMARY_FILE = "summary.json"
BASELINE = "full"


def summarize(answers: pd.DataFrame, facts: JobFacts) -> Summary:
    """Reduce the answers of a run to its numbers.

    Accuracy is strict: a question that failed, or whose reply names no option, counts as wrong.
    `accuracy_answered` leaves both out. Questions without a known answer count in neither.
    `harness_accuracy` is what the evaluation harness whose protocol was used would have printed.

    Latencies count measurements, not rows: decoding, vision and compression once per clip and only
    where this run did them (a cache hit measures nothing). In throughput mode the prefix with the
    clip is shared by all its questions, so prefill and time to the first token are those of the
    clip's first question, which pays for the prefix; in profile mode every question counts.

    Args:
        answers: One row per (benchmark, cell, question), with the columns of `answers/*.parquet`;
            rows of one clip stay in the order of its questions.
        facts: What the run says about itself; cells without a row get a summary too.

    Returns:
        Plain data for `summary.json`. `cells` holds one flat summary per cell of `facts`, in order;
        the top level holds the run's totals, the methods that were left out (`left_out`) and, for a
        run with one cell, all fields of that cell; of a profile that `tango evaluate` made, the
        fields of the method beside all tokens.
    """
    answers = normalize(answers)
    parts = [_rows_of(answers, cell) for cell in facts.cells]
    baselines = {
        cell.benchmark: rows
        for cell, rows in zip(facts.cells, parts, strict=True)
        if cell.method == BASELINE
    }
    cells = []
    for cell, rows in zip(facts.cells, parts, strict=True):
        baseline = baselines.get(cell.benchmark)
        entry = _summarize_cell(rows, cell, facts)
        if baseline is not None and cell.method != BASELINE:
            entry["versus_full"] = compare_rows(rows, baseline, facts.mode)
        cells.append(entry)
    run = {
        "run_id": facts.run_id,
        "kind": facts.kind,
        "model": facts.model,
        "mode": facts.mode,
        "note": facts.note,
        "left_out": [asdict(entry) for entry in facts.left_out],
        **_counts(answers),
        "latency_ms": latencies(answers, facts.mode, per_cell=False),
        "cache": cache_counts(answers),
        "throughput": throughput(answers, facts.wall_s),
        **_peak(answers, facts),
    }
    if len(cells) == 1:
        run = {**cells[0], **run}
    elif facts.kind == "evaluate":
        # A profile of one method measures all tokens beside it; the run is about the method.
        (own,) = (entry for entry in cells if entry["method"] != BASELINE)
        run = {**run, **own, "throughput": run["throughput"]}
    return {**run, "cells": cells}


def compare_rows(rows: pd.DataFrame, baseline: pd.DataFrame, mode: str) -> Summary | None:
    """Compare two cells on the questions both were asked and whose answer is known.

    In profile mode it also holds `ttft_speedup` (language model alone) and `speedup_to_first_token`
    (vision + compression + language model, as published speed-ups count): the baseline's median
    over this cell's median, on questions that both measured.

    Args:
        rows: Normalised answers of one cell.
        baseline: Normalised answers of the other, same benchmark.
        mode: `"throughput"` or `"profile"`.

    Returns:
        Only the speed-ups if the two have no such question in common, and `None` without these.
    """
    keys = ["video_id", "question_id"]
    pair = rows.merge(baseline, on=keys, suffixes=("", "_base"))
    scored = pair[_is_scored(pair)]
    result = compare_paired(
        _is_correct(scored), _is_correct(scored, "_base"), scored["video_id"].to_numpy()
    )
    summary = {} if result is None else _comparison(result)
    if mode == "profile":
        summary |= speed_ups(pair)
    return summary or None


def read_answers(run_dir: Path) -> pd.DataFrame:
    """Read all of `answers/*.parquet`, in the order of the file names.

    Raises:
        FileNotFoundError: If there are none.
    """
    files = sorted((run_dir / "answers").glob("*.parquet"))
    if not files:
        raise FileNotFoundError(
            f"{run_dir} holds no answers/*.parquet; continue the run with --resume {run_dir.name}"
        )
    return pd.concat([pd.read_parquet(file) for file in files], ignore_index=True)


def failed_rows(answers: pd.DataFrame) -> pd.DataFrame:
    """The questions whose clip or answer failed, as `failures.parquet` lists them."""
    return answers[answers["status"].isin(FAILED)].reset_index(drop=True)


def write_summary(run_dir: Path) -> Summary:
    """Read `facts.json` and the answers of a run directory, write its `summary.json`."""
    summary = summarize(read_answers(run_dir), JobFacts.load(run_dir))
    save_summary(summary, run_dir)
    return summary


def save_summary(summary: Summary, folder: Path) -> None:
    """Write `summary.json` into a directory."""
    text = json.dumps(summary, indent=2, allow_nan=False)
    (folder / SUMMARY_FILE).write_text(text + "\n")


def _rows_of(answers: pd.DataFrame, cell: CellFacts) -> pd.DataFrame:
    """Rows of one cell."""
    return answers[(answers["cell"] == cell.name) & (answers["benchmark"] == cell.benchmark)]


def _summarize_cell(rows: pd.DataFrame, cell: CellFacts, facts: JobFacts) -> Summary:
    """The flat summary of one cell."""
    scored = rows[_is_scored(rows)]
    correct, clips = _is_correct(scored), scored["video_id"].to_numpy()
    parsed = (scored["status"] == "ok").to_numpy(dtype=bool)
    overall = clustered_accuracy(correct, clips)
    answered = clustered_accuracy(correct[parsed], clips[parsed])
    groups = [read_groups(value) for value in scored["groups"]]
    by_group = accuracy_by_group(correct, clips, groups)
    total, kept, with_newlines = token_counts(rows)
    actual = kept / total if total else None
    return {
        "cell": cell.name,
        "benchmark": cell.benchmark,
        "protocol": cell.protocol,
        "method": cell.method,
        "options": dict(cell.options),
        "accuracy": None if overall is None else overall.value,
        "accuracy_ci95": None if overall is None else [overall.low, overall.high],
        "accuracy_answered": None if answered is None else answered.value,
        "accuracy_macro": macro_accuracy(correct, groups, cell.benchmark),
        "harness_accuracy": harness_accuracy(rows, cell.benchmark, cell.protocol),
        "accuracy_by": {group: plain_accuracies(values) for group, values in by_group.items()},
        "accuracy_cross": cross_accuracy(correct, clips, groups, cell.benchmark),
        **_counts(rows),
        "retention_requested": cell.retention,
        "retention_actual": actual,
        "retention_with_newlines": with_newlines / total if total and with_newlines else None,
        "equivalent_retention": None if actual is None else actual * cell.mean_layer_share,
        "tokens_total": total,
        "tokens_kept": kept,
        "tokens_with_newlines": with_newlines,
        "latency_ms": latencies(rows, facts.mode, per_cell=True),
        "cache": cache_counts(rows),
        "throughput": throughput(rows, None),
        "prefill_tflops": prefill_tflops(rows, cell, facts),
        **_peak(rows, facts),
        "versus_full": None,
    }


def _peak(rows: pd.DataFrame, facts: JobFacts) -> Summary:
    """Peak memory and whose it is; what a run says about itself counts where no row has any."""
    gib, whose = peak_memory(rows)
    return {"peak_gib": facts.peak_gib if gib is None else gib, "peak_of": whose}


def _is_scored(rows: pd.DataFrame) -> pd.Series:
    """Questions whose answer is known."""
    return rows["answer"].notna() | rows["correct"].notna()


def _is_correct(rows: pd.DataFrame, suffix: str = "") -> np.ndarray:
    """(n,) bool; what failed or could not be read is wrong."""
    right = rows[f"correct{suffix}"].astype("boolean").fillna(False)
    return (right & (rows[f"status{suffix}"] == "ok")).to_numpy(dtype=bool)


def _counts(rows: pd.DataFrame) -> Summary:
    """Questions by outcome; answered, unparsed and failed add up to all."""
    failed = rows["status"].isin(FAILED)
    return {
        "num_questions": len(rows),
        "num_scored": int(_is_scored(rows).sum()),
        "num_answered": int((rows["status"] == "ok").sum()),
        "num_unparsed": int((rows["status"] == "unparsed").sum()),
        "num_failed": int(failed.sum()),
        "num_clips": len(clips(rows, per_cell=False)),
        "num_failed_clips": len(clips(rows[failed], per_cell=False)),
    }


def _comparison(result: Comparison) -> Summary:
    """Plain data of a paired comparison."""
    return {
        "difference": result.difference,
        "difference_ci95": [result.low, result.high],
        "p_value": result.p_value,
        "num_questions": result.num_questions,
        "num_gained": result.num_gained,
        "num_lost": result.num_lost,
    }
