"""Summarise the answers of a run in `summary.json`."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from statistics import fmean

import numpy as np
import pandas as pd

from jobs.results.answer_columns import DAMAGED_BIT, FAILED_BIT, OK, PRESENT, SCORED, UNPARSED
from jobs.results.cell_summary import BASELINE, CellSummary
from jobs.results.facts import CellFacts, JobFacts
from jobs.results.outcomes import Bits, Outcomes, compare_cells
from jobs.results.quantities import QuestionCounts
from jobs.results.reduction import Reduction, parts_of, reduce_runs, reduce_table
from jobs.results.replies import FailureList
from jobs.results.run_summary import RunSummary, main_cell
from pipeline.clips import FAILED
from pipeline.progress.answers import read_answers as read_all
from pipeline.storage import Storage
from tango_core.benchmarks import facts_of

SUMMARY_FILE = "summary.json"


def summarize(answers: pd.DataFrame, facts: JobFacts) -> RunSummary:
    """Reduce the answers of a run to its numbers.

    Scores are strict: a question that failed, or whose reply names no option or span, counts as
    wrong. `accuracy_answered` counts neither. Questions without a known answer count in none of the
    two. `harness_accuracy` is what the evaluation harness whose protocol was used would have
    printed.

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
    return summarize_reduced(reduce_table(answers, facts.mode), facts)


def summarize_reduced(reduction: Reduction, facts: JobFacts) -> RunSummary:
    """`summarize` of answers that were read before."""
    cells = tuple(_summarize_cell(reduction, cell, facts) for cell in facts.cells)
    total, counts = reduction.measurements.totals(None), _run_counts(reduction)
    about: RunSummary | CellSummary | None = main_cell(cells, facts.kind)
    whole = RunSummary(
        run_id=facts.run_id,
        kind=facts.kind,
        model=facts.model,
        mode=facts.mode,
        note=facts.note,
        skipped=facts.skipped,
        counts=counts,
        latency_ms=total.latency_ms,
        cache=total.cache,
        throughput=total.throughput(counts.num_clips, counts.num_questions, facts.wall_s),
        work=facts.work,
        peak_gib=facts.peak_gib if total.peak_gib is None else total.peak_gib,
        peak_of=total.peak_of,
        failures=FailureList.of(reduction.measurements.failures()),
        cells=cells,
    )
    if about is None or len(cells) == 1:
        return whole
    of_cell = ("counts", "cache", "latency_ms", "peak_gib", "peak_of")
    return replace(whole, **{name: getattr(about, name) for name in of_cell})


def read_answers(run_dir: Path) -> pd.DataFrame:
    """Read and check all of `answers/*.parquet` at once, for runs that fit into memory.

    Raises:
        DamagedFileError: If a file is damaged.
        FileNotFoundError: If there are none.
        ValueError: If one of them is damaged.
    """
    answers: pd.DataFrame = read_all(parts_of(run_dir).storage).to_pandas()
    return answers


def failed_rows(answers: pd.DataFrame) -> pd.DataFrame:
    """The questions whose clip or answer failed, as `failures.parquet` lists them."""
    return answers[answers["status"].isin(FAILED)].reset_index(drop=True)


def write_summary(run_dir: Path) -> RunSummary:
    """Read `facts.json` and the answers of a run directory, write its `summary.json`."""
    facts = JobFacts.load(run_dir)
    summary = summarize_reduced(reduce_runs([run_dir], facts.mode), facts)
    save_summary(summary, run_dir)
    return summary


def save_summary(summary: RunSummary, folder: Path) -> None:
    """Write `summary.json` into a directory."""
    text = json.dumps(summary.to_json(), indent=2, allow_nan=False)
    Storage.at(folder).write(SUMMARY_FILE, f"{text}\n".encode())


def _summarize_cell(reduction: Reduction, cell: CellFacts, facts: JobFacts) -> CellSummary:
    """The summary of one cell."""
    outcomes = reduction.outcomes.get(cell.benchmark) or Outcomes(cell.benchmark)
    key = (cell.benchmark, cell.name)
    totals, headline = reduction.measurements.totals(key), outcomes.metrics[0]
    counted = {metric: outcomes.count(metric, cell.name) for metric in outcomes.metrics}
    estimates = {metric.name: outcomes.estimate(metric, own) for metric, own in counted.items()}
    scores_by = {metric.name: outcomes.by_group(metric, own) for metric, own in counted.items()}
    total, kept, newlines = (
        totals.tokens_total,
        totals.tokens_kept,
        totals.tokens_with_newlines,
    )
    actual = kept / total if total else None
    full = [c.name for c in facts.cells if (c.benchmark, c.method) == (cell.benchmark, BASELINE)]
    versus_full = None
    if full and full[-1] in outcomes.cells and cell.method != BASELINE:
        versus_full = compare_cells(
            outcomes, cell.name, outcomes, full[-1], profile=reduction.profile
        )
    bits = outcomes.bits(cell.name)
    counts = _counts(bits, outcomes)
    # Averaged so by the benchmark's authors, e.g. accuracy over the tasks of MLVU.
    averaged = scores_by[headline.name].get(facts_of(cell.benchmark).macro_group or "", {})
    read = counted[headline].counts & ((bits & OK) > 0)
    is_answered = headline.unit == "question" and read.any()
    return CellSummary(
        name=cell.name,
        benchmark=cell.benchmark,
        protocol=cell.protocol,
        method=cell.method,
        options=dict(cell.options),
        metric=headline.name,
        scores={name: one for name, one in estimates.items() if one is not None},
        answered=float(counted[headline].values[read].mean()) if is_answered else None,
        macro=fmean(one.value for one in averaged.values()) if averaged else None,
        harness=outcomes.harness_value(cell.name, cell.protocol),
        scores_by=scores_by,
        cross=outcomes.cross(headline, counted[headline]),
        counts=counts,
        readings=reduction.measurements.readings(key),
        retention_requested=cell.retention,
        retention_actual=actual,
        retention_with_newlines=newlines / total if total and newlines else None,
        equivalent_retention=None if actual is None else actual * cell.mean_layer_share,
        tokens_total=total,
        tokens_kept=kept,
        tokens_with_newlines=newlines,
        clip_text_tokens=totals.clip_text_tokens,
        latency_ms=totals.latency_ms,
        cache=totals.cache,
        throughput=totals.throughput(counts.num_clips, counts.num_questions, None),
        prefill_tflops=totals.prefill_tflops(cell, facts.llm),
        peak_gib=facts.peak_gib if totals.peak_gib is None else totals.peak_gib,
        peak_of=totals.peak_of,
        versus_full=versus_full,
        questions_digest=outcomes.digest(cell.name),
        run_id=facts.run_id,
        model=facts.model,
        num_frames=facts.num_frames,
        input_size=facts.input_size,
        llm_shape=(facts.llm.num_layers, facts.llm.hidden_size) if facts.llm else None,
        checkpoint=facts.checkpoint,
    )


def _counts(bits: Bits, outcomes: Outcomes) -> QuestionCounts:
    """Questions of a cell by outcome."""

    def count(bit: int) -> int:
        return int(((bits & bit) > 0).sum())

    return QuestionCounts(
        num_questions=count(PRESENT),
        num_scored=count(SCORED),
        num_answered=count(OK),
        num_unparsed=count(UNPARSED),
        num_failed=count(FAILED_BIT),
        num_clips=len(np.unique(outcomes.asked["clip"][bits > 0])),
        num_failed_clips=len(np.unique(outcomes.asked["clip"][(bits & FAILED_BIT) > 0])),
        num_damaged=count(DAMAGED_BIT),
        num_different=count(PRESENT),
    )


def _run_counts(reduction: Reduction) -> QuestionCounts:
    """Answers of all cells by outcome; clips and different questions once."""
    every = reduction.outcomes.values()
    parts = [_counts(one.bits(cell), one) for one in every for cell in one.cells]
    failed = [np.any([one.bits(cell) & FAILED_BIT for cell in one.cells], 0) for one in every]
    return replace(
        QuestionCounts.total([QuestionCounts(), *parts]),
        num_clips=sum(one.num_clips for one in every),
        num_failed_clips=sum(
            len(np.unique(one.asked["clip"][lost])) for one, lost in zip(every, failed, strict=True)
        ),
        num_different=sum(one.num_questions for one in every),
    )
