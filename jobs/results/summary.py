"""Summarise the answers of a run in `summary.json`."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from statistics import fmean

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.compute as pc

from jobs.results import answer_columns as bits
from jobs.results.answer_columns import AnswerColumns, Keys, question_keys
from jobs.results.cell_summary import BASELINE, CellSummary, RunSummary, main_cell
from jobs.results.facts import CellFacts, JobFacts, resumed_as
from jobs.results.measurements import Measurements, failures_of, first_token_ms
from jobs.results.outcomes import Outcomes, compare_cells
from jobs.results.quantities import QuestionCounts
from pipeline.clips import FAILED
from pipeline.progress.parts import AnswerParts
from pipeline.storage import Storage
from pipeline.storage.copies import home_of
from tango_core.benchmarks import facts_of
from tango_core.errors import MissingFileError

SUMMARY_FILE = "summary.json"


def summarize_reduced(reduction: Reduction, facts: JobFacts) -> RunSummary:
    """Make a run's summary of its reduced answers.

    Scores are strict: a question that failed, or whose reply names no option or span, counts as
    wrong. `accuracy_answered` counts neither. Questions without a known answer count in none of the
    two. `harness_accuracy` is what the evaluation harness whose protocol was used would have
    printed.

    Latencies count measurements, not rows: decoding, vision and compression once per clip and only
    where this run did them (a cache hit measures nothing). In throughput mode the prefix with the
    clip is shared by all its questions, so prefill and time to the first token are those of the
    clip's first question, which pays for the prefix; in profile mode every question counts.

    Args:
        reduction: The run's answers; rows of one clip stay in the order of its questions.
        facts: What the run says about itself; cells without a row get a summary too.

    Returns:
        The run's totals and one summary per cell of `facts`, in order. In a profile that `tango
        evaluate` made, the totals are those of the method, without the cell of all tokens.
    """
    cells = tuple(_summarize_cell(reduction, cell, facts) for cell in facts.cells)
    measured, every = reduction.measurements, reduction.outcomes.values()
    counts = QuestionCounts.total([QuestionCounts(), *(_counts(one, one.cells) for one in every)])
    of_facts = ("run_id", "kind", "model", "mode", "note", "skipped", "work")
    reading = any(cell.reads_question for cell in facts.cells)
    totals = measured.totals(None, reads_question=reading, peak_gib=facts.peak_gib)
    about: CellSummary | None = main_cell(cells, facts.kind)
    if about is not None and len(cells) > 1:
        totals |= {name: getattr(about, name) for name in totals}
    return RunSummary(
        **{name: getattr(facts, name) for name in of_facts},
        **totals,
        counts=about.counts if about else counts,
        throughput=measured.throughput(None, counts, facts.wall_s),
        failures=failures_of([measured]),
        cells=cells,
    )


def failed_rows(answers: pd.DataFrame) -> pd.DataFrame:
    """The questions whose clip or answer failed, as `failures.parquet` lists them."""
    return answers[answers["status"].isin(FAILED)].reset_index(drop=True)


def save_summary(summary: RunSummary, folder: Path) -> None:
    """Write `summary.json` into a directory."""
    text = json.dumps(summary.to_json(), indent=2, allow_nan=False)
    Storage.at(folder).write(SUMMARY_FILE, f"{text}\n".encode())


def _summarize_cell(reduction: Reduction, cell: CellFacts, facts: JobFacts) -> CellSummary:
    """The summary of one cell."""
    outcomes = reduction.outcomes.get(cell.benchmark) or Outcomes(cell.benchmark)
    key = (cell.benchmark, cell.name)
    measured, headline = reduction.measurements, outcomes.metrics[0]
    totals = measured.totals(key, reads_question=cell.reads_question, peak_gib=facts.peak_gib)
    tokens = measured.tokens(key)
    counted = {metric: outcomes.count(metric, cell.name) for metric in outcomes.metrics}
    estimates = {metric.name: outcomes.estimate(metric, own) for metric, own in counted.items()}
    scores_by = {metric.name: outcomes.by_group(metric, own) for metric, own in counted.items()}
    total, newlines = tokens["tokens_total"], tokens["tokens_with_newlines"]
    actual = (tokens["tokens_kept"] or 0) / total if total else None
    full = [c.name for c in facts.cells if (c.benchmark, c.method) == (cell.benchmark, BASELINE)]
    versus_full = None
    if full and full[-1] in outcomes.cells and cell.method != BASELINE:
        versus_full = compare_cells(
            outcomes, cell.name, outcomes, full[-1], profile=reduction.profile
        )
    # Averaged so by the benchmark's authors, e.g. accuracy over the tasks of MLVU.
    averaged = scores_by[headline.name].get(facts_of(cell.benchmark).macro_group or "", {})
    read = counted[headline].counts & ((outcomes.bits(cell.name) & bits.OK) > 0)
    is_answered = headline.unit == "question" and read.any()
    of_cell = ("name", "benchmark", "protocol", "method")
    of_run = ("run_id", "model", "num_frames", "input_size", "checkpoint")
    return CellSummary(
        **{name: getattr(cell, name) for name in of_cell},
        **{name: getattr(facts, name) for name in of_run},
        **totals,
        **tokens,
        options=dict(cell.options),
        metric=headline.name,
        scores={name: one for name, one in estimates.items() if one is not None},
        answered=float(counted[headline].values[read].mean()) if is_answered else None,
        macro=fmean(one.value for one in averaged.values()) if averaged else None,
        harness=outcomes.harness_value(cell.name, cell.protocol),
        scores_by=scores_by,
        cross=outcomes.cross(headline, counted[headline]),
        counts=_counts(outcomes, [cell.name]),
        readings=measured.readings(key),
        retention_requested=cell.retention,
        retention_actual=actual,
        retention_with_newlines=newlines / total if total and newlines else None,
        equivalent_retention=None if actual is None else actual * cell.mean_layer_share,
        throughput=measured.throughput(key),
        first_token_ms=first_token_ms(totals["latency_ms"]),
        encoder_tflops=measured.encoder_tflops(key),
        reads_question=cell.reads_question,
        prefill_tflops=measured.prefill_tflops(cell, facts.llm),
        versus_full=versus_full,
        questions_digest=outcomes.digest(cell.name),
        llm_shape=(facts.llm.num_layers, facts.llm.hidden_size) if facts.llm else None,
    )


def _counts(outcomes: Outcomes, cells: Sequence[str]) -> QuestionCounts:
    """Answers of some cells of a benchmark by outcome; clips and different questions once."""
    every = np.array([np.zeros(outcomes.num_questions, np.uint8), *map(outcomes.bits, cells)])
    any_cell = np.bitwise_or.reduce(every, axis=0)

    def answers(bit: int) -> int:
        return int(((every & bit) > 0).sum())

    def clips(bit: int) -> int:
        return int(outcomes.asked["clip"][(any_cell & bit) > 0].nunique())

    return QuestionCounts(
        num_questions=answers(bits.PRESENT),
        num_scored=answers(bits.SCORED),
        num_answered=answers(bits.OK),
        num_unparsed=answers(bits.UNPARSED),
        num_failed=answers(bits.FAILED_BIT),
        num_damaged=answers(bits.DAMAGED_BIT),
        num_clips=clips(bits.PRESENT),
        num_failed_clips=clips(bits.FAILED_BIT),
        num_different=int((any_cell > 0).sum()),
    )


class Reduction:
    """Accumulates answers part by part: outcomes per question, and sums per cell.

    Args:
        mode: `"throughput"` or `"profile"`; decides what counts as a measurement.

    Attributes:
        outcomes: Benchmark -> right and wrong.
        measurements: Everything else.
        num_answers: Answers in the files of the runs.
    """

    def __init__(self, mode: str) -> None:
        self.profile = mode == "profile"
        self.outcomes: dict[str, Outcomes] = {}
        self.measurements = Measurements(profile=self.profile)
        self.num_answers = 0

    def add(self, table: pa.Table) -> None:
        """Add a table of answers; it must hold all answers about each of its clips."""
        for name in table["benchmark"].unique().to_pylist():
            answers = AnswerColumns(table.filter(pc.equal(table["benchmark"], name)))
            outcomes = self.outcomes.setdefault(name, Outcomes(name, profile=self.profile))
            outcomes.add(answers)
            self.measurements.add(answers)


def tables_of(
    folders: Sequence[Path], only: Mapping[str, Keys] | None = None
) -> Iterator[pa.Table]:
    """Read and check the answers of a run, or of several runs that have no clip in common.

    Args:
        folders: Run directories.
        only: Benchmark -> keys of the questions that count; benchmarks that are not named count as
            a whole.

    Raises:
        DamagedFileError: If a file is damaged.
        FileNotFoundError: If a run has no answers.
    """
    for folder in folders:
        for table in parts_of(folder).whole_clips():
            yield chosen(table, only)


def chosen(table: pa.Table, only: Mapping[str, Keys] | None) -> pa.Table:
    """The rows of a table whose question counts; see `tables_of`."""
    if not only:
        return table
    limited = pc.is_in(table["benchmark"], pa.array(list(only)))
    counts = pd.Series(question_keys(table)).isin(np.concatenate(list(only.values())))
    return table.filter(pc.or_(pc.invert(limited), pa.array(counts)))


def reduce_runs(
    folders: Sequence[Path], mode: str, *, only: Mapping[str, Keys] | None = None
) -> Reduction:
    """Reduce the answers of a run, or of several runs that have no clip in common.

    Args:
        folders: Run directories.
        mode: `"throughput"` or `"profile"`.
        only: As `tables_of`.

    Raises:
        DamagedFileError: If a file is damaged.
        FileNotFoundError: If a run has no answers.
    """
    reduction = Reduction(mode)
    for table in tables_of(folders):
        reduction.num_answers += len(table)
        reduction.add(chosen(table, only))
    return reduction


def parts_of(run_dir: Path) -> AnswerParts:
    """The answers of a run.

    Raises:
        FileNotFoundError: If there are none.
    """
    parts = AnswerParts(run_dir / "answers")
    if not parts.overview.names:
        raise MissingFileError(
            f"{home_of(run_dir)} holds no answers/*.parquet; "
            f"continue the run with --resume {resumed_as(run_dir)}"
        )
    return parts


def questions_asked(run_dir: Path) -> dict[str, Keys]:
    """Benchmark -> sorted keys of the questions of a run, from the names of its answers."""
    found: dict[str, list[Keys]] = {}
    for table in parts_of(run_dir).names():
        keys = pd.Series(question_keys(table)).groupby(table["benchmark"].to_pandas()).unique()
        for benchmark, own in keys.items():
            found.setdefault(str(benchmark), []).append(own)
    return {name: np.unique(np.concatenate(keys)) for name, keys in found.items()}
