"""From the answers of a run to its numbers: `summary.json`."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pandas as pd

from jobs.results.cell_summary import BASELINE, CellSummary
from jobs.results.facts import CellFacts, JobFacts
from jobs.results.measurements import (
    FIRST_TOKEN,
    cache_counts,
    clips,
    latencies,
    normalize,
    peak_memory,
    prefill_tflops,
    speed_up,
    throughput,
    token_counts,
)
from jobs.results.quantities import Comparison, QuestionCounts
from jobs.results.run_summary import RunsSummary, RunSummary, main_cell
from jobs.results.scores import cross_accuracy, harness_accuracy, macro_accuracy, read_groups
from pipeline.answers import ANSWER_KEY, read_parts
from pipeline.stages.declarations import FAILED
from pipeline.storage import Storage
from tango_core.metrics import accuracy_by_group, clustered_accuracy, compare_paired

SUMMARY_FILE = "summary.json"


def summarize(answers: pd.DataFrame, facts: JobFacts) -> RunSummary:
    """Reduce the answers of a run to its numbers.

    Accuracy is strict: a question that failed, or whose reply names no option, counts as wrong.
    `accuracy_answered` counts neither. Questions without a known answer count in none of the two.
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
        The run's totals and one summary per cell of `facts`, in order. In a profile that `tango
        evaluate` made, the totals are those of the method, without the cell of all tokens.
    """
    answers = normalize(answers)
    parts = [_rows_of(answers, cell) for cell in facts.cells]
    baselines = {
        cell.benchmark: rows
        for cell, rows in zip(facts.cells, parts, strict=True)
        if cell.method == BASELINE
    }
    cells = tuple(
        _summarize_cell(rows, baselines.get(cell.benchmark), cell, facts)
        for cell, rows in zip(facts.cells, parts, strict=True)
    )
    peak_gib, peak_of = _peak(answers, facts)
    counts, cache = _counts(answers), cache_counts(answers)
    latency_ms = latencies(answers, facts.mode, per_cell=False)
    cell = main_cell(cells, facts.kind)
    if len(cells) > 1 and cell is not None:
        counts, cache, latency_ms = cell.counts, cell.cache, cell.latency_ms
        peak_gib, peak_of = cell.peak_gib, cell.peak_of
    return RunSummary(
        run_id=facts.run_id,
        kind=facts.kind,
        model=facts.model,
        mode=facts.mode,
        note=facts.note,
        skipped=facts.skipped,
        counts=counts,
        latency_ms=latency_ms,
        cache=cache,
        throughput=throughput(answers, facts.wall_s),
        peak_gib=peak_gib,
        peak_of=peak_of,
        cells=cells,
    )


def compare_rows(rows: pd.DataFrame, baseline: pd.DataFrame, mode: str) -> Comparison | None:
    """Compare two cells on the questions both were asked and whose answer is known.

    In profile mode also their speed: the baseline's median time over this cell's, on questions that
    both measured, for the language model alone and for vision, compression and language model
    together (as published speed-ups count).

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
    paired = compare_paired(
        _is_correct(scored), _is_correct(scored, "_base"), scored["video_id"].to_numpy()
    )
    profile = mode == "profile"
    comparison = Comparison(
        paired,
        ttft_speedup=speed_up(pair, ("ttft_ms",)) if profile else None,
        first_token_speedup=speed_up(pair, FIRST_TOKEN) if profile else None,
    )
    return None if comparison == Comparison() else comparison


def read_answers(run_dir: Path) -> pd.DataFrame:
    """Read and check all of `answers/*.parquet`, in the order of the file names.

    Raises:
        DamagedFileError: If a file is damaged.
        FileNotFoundError: If there are none.
        ValueError: If one of them is damaged.
    """
    parts = read_parts(run_dir / "answers")
    if not parts:
        raise FileNotFoundError(
            f"{run_dir} holds no answers/*.parquet; continue the run with --resume {run_dir.name}"
        )
    answers = pd.concat([part.to_pandas() for part in parts.values()], ignore_index=True)
    # A driver that died while it rewrote its parts left some rows twice.
    last: pd.DataFrame = answers.drop_duplicates(list(ANSWER_KEY), keep="last", ignore_index=True)
    return last


def failed_rows(answers: pd.DataFrame) -> pd.DataFrame:
    """The questions whose clip or answer failed, as `failures.parquet` lists them."""
    return answers[answers["status"].isin(FAILED)].reset_index(drop=True)


def write_summary(run_dir: Path) -> RunSummary:
    """Read `facts.json` and the answers of a run directory, write its `summary.json`."""
    summary = summarize(read_answers(run_dir), JobFacts.load(run_dir))
    save_summary(summary, run_dir)
    return summary


def save_summary(summary: RunSummary | RunsSummary, folder: Path) -> None:
    """Write `summary.json` into a directory."""
    text = json.dumps(summary.to_json(), indent=2, allow_nan=False)
    Storage.at(folder).write(SUMMARY_FILE, f"{text}\n".encode())


def _rows_of(answers: pd.DataFrame, cell: CellFacts) -> pd.DataFrame:
    """Rows of one cell."""
    return answers[(answers["cell"] == cell.name) & (answers["benchmark"] == cell.benchmark)]


def _summarize_cell(
    rows: pd.DataFrame, baseline: pd.DataFrame | None, cell: CellFacts, facts: JobFacts
) -> CellSummary:
    """The summary of one cell; `baseline` holds the answers with all tokens, if there are any."""
    scored = rows[_is_scored(rows)]
    correct, clip_ids = _is_correct(scored), scored["video_id"].to_numpy()
    parsed = (scored["status"] == "ok").to_numpy(dtype=bool)
    answered = clustered_accuracy(correct[parsed], clip_ids[parsed])
    groups = [read_groups(value) for value in scored["groups"]]
    total, kept, with_newlines = token_counts(rows)
    actual = kept / total if total else None
    peak_gib, peak_of = _peak(rows, facts)
    versus_full = None
    if baseline is not None and cell.method != BASELINE:
        versus_full = compare_rows(rows, baseline, facts.mode)
    return CellSummary(
        name=cell.name,
        benchmark=cell.benchmark,
        protocol=cell.protocol,
        method=cell.method,
        options=dict(cell.options),
        accuracy=clustered_accuracy(correct, clip_ids),
        accuracy_answered=None if answered is None else answered.value,
        accuracy_macro=macro_accuracy(correct, groups, cell.benchmark),
        harness_accuracy=harness_accuracy(rows, cell.benchmark, cell.protocol),
        accuracy_by=accuracy_by_group(correct, clip_ids, groups),
        accuracy_cross=cross_accuracy(correct, clip_ids, groups, cell.benchmark),
        counts=_counts(rows),
        retention_requested=cell.retention,
        retention_actual=actual,
        retention_with_newlines=with_newlines / total if total and with_newlines else None,
        equivalent_retention=None if actual is None else actual * cell.mean_layer_share,
        tokens_total=total,
        tokens_kept=kept,
        tokens_with_newlines=with_newlines,
        latency_ms=latencies(rows, facts.mode, per_cell=True),
        cache=cache_counts(rows),
        throughput=throughput(rows, None),
        prefill_tflops=prefill_tflops(rows, cell, facts),
        peak_gib=peak_gib,
        peak_of=peak_of,
        versus_full=versus_full,
        run_id=facts.run_id,
        model=facts.model,
        num_frames=facts.num_frames,
        llm_shape=(facts.llm.num_layers, facts.llm.hidden_size) if facts.llm else None,
    )


def _peak(rows: pd.DataFrame, facts: JobFacts) -> tuple[float | None, str | None]:
    """Peak memory and whose it is; what a run says about itself counts where no row has any."""
    gib, owner = peak_memory(rows)
    return (facts.peak_gib if gib is None else gib), owner


def _is_scored(rows: pd.DataFrame) -> pd.Series:
    """Questions whose answer is known."""
    return rows["answer"].notna() | rows["correct"].notna()


def _is_correct(rows: pd.DataFrame, suffix: str = "") -> np.ndarray:
    """(n,) bool; what failed or could not be read is wrong."""
    right = rows[f"correct{suffix}"].astype("boolean").fillna(False)
    return (right & (rows[f"status{suffix}"] == "ok")).to_numpy(dtype=bool)


def _counts(rows: pd.DataFrame) -> QuestionCounts:
    """Questions by outcome."""
    failed = rows["status"].isin(FAILED)
    return QuestionCounts(
        num_questions=len(rows),
        num_scored=int(_is_scored(rows).sum()),
        num_answered=int((rows["status"] == "ok").sum()),
        num_unparsed=int((rows["status"] == "unparsed").sum()),
        num_failed=int(failed.sum()),
        num_clips=len(clips(rows, per_cell=False)),
        num_failed_clips=len(clips(rows[failed], per_cell=False)),
        num_damaged=int(rows["damaged"].sum()),
    )
