"""Exchange answers with the two evaluation harnesses: write their files, and read theirs.

| harness | file | module |
|---|---|---|
| VLMEvalKit | `<model>_<dataset>.tsv` or `.json` (reads also `.xlsx`) | `jobs.harness.vlmevalkit` |
| lmms-eval | `<date>_samples_<task>.jsonl` | `jobs.harness.lmms_eval` |

What is read becomes rows of `answers/*.parquet`, read by our strict rules under the benchmark's
protocol, so that a run here and a run there can be compared question by question.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import cast

import pandas as pd

from pipeline.rows import ANSWER, Row, to_table
from pipeline.stages.declarations import ANSWER_QUESTIONS
from pipeline.statuses import is_failed
from tango_core.benchmarks.annotated import AnnotatedBenchmark, Record
from tango_core.benchmarks.protocols.protocol import NO_REPLY, NOT_LOADED, is_failure
from tango_core.benchmarks.scoring.judge import judge


def replies_of(
    answers: pd.DataFrame, benchmark: AnnotatedBenchmark, failed: str, *, partial: bool = False
) -> dict[str, str]:
    """Return question id -> reply for one cell of a run.

    Args:
        answers: Rows of `answers/*.parquet` of one cell.
        benchmark: What the questions are from; other benchmarks' rows are skipped.
        failed: The reply of a question that was never answered.
        partial: The run was asked a part of the questions (`limit`, `shard`).

    Raises:
        ValueError: If the rows are of several cells, or a question has no row and `partial` is not
            set.
    """
    rows = answers[answers["benchmark"] == benchmark.name]
    cells = sorted(set(rows["cell"]))
    if len(cells) != 1:
        raise ValueError(
            f"a result file holds one cell of one benchmark; for {benchmark.name} these answers "
            f"have {', '.join(map(repr, cells)) or 'none'}; keep the rows of one"
        )
    records = cast("list[Row]", rows.to_dict("records"))
    replies = {
        str(row["question_id"]): failed if is_failed(row) else str(row["text"]) for row in records
    }
    absent = [r.question.id for r in benchmark.records() if r.question.id not in replies]
    if absent and not partial:
        raise ValueError(
            f"{len(absent)} questions of {benchmark.name} have no answer, e.g. {absent[0]!r}; "
            "finish the run first (--resume)"
        )
    return replies


def answer_rows(
    replies: Mapping[str, str | None],
    benchmark: AnnotatedBenchmark,
    cell: str,
    source: Path,
    *,
    partial: bool = False,
) -> pd.DataFrame:
    """Turn replies from elsewhere into rows of `answers/*.parquet`, one per question.

    Args:
        replies: Question id -> reply; `None` or a question that is absent is a failure.
        benchmark: What the questions are from.
        cell: Name for the cell; also used as its method.
        source: The file, for error messages of the rows.
        partial: Skip questions that are absent, instead of counting them as failures.
    """
    rows = [
        _answer_row(record, replies.get(record.question.id), benchmark, cell, source)
        for record in benchmark.records()
        if not partial or record.question.id in replies
    ]
    frame: pd.DataFrame = to_table(rows, ANSWER).to_pandas()
    return frame


def _answer_row(
    record: Record, reply: str | None, benchmark: AnnotatedBenchmark, cell: str, source: Path
) -> Row:
    """One row; our reading of a reply decides whether it is right."""
    question, protocol = record.question, benchmark.protocol
    failed = reply is None or is_failure(reply)
    # A harness counts its own sentence about a failure in its own way.
    counted = protocol.failed_reply if reply in (None, NO_REPLY, NOT_LOADED) else str(reply)
    text = "" if failed or reply is None else reply
    read = judge(None if failed else text, question, protocol.read_choice)
    score = protocol.harness_score
    status = ANSWER_QUESTIONS.failure if failed else "ok" if read.readable else "unparsed"
    return {
        "benchmark": benchmark.name,
        "video_id": record.video_id,
        "question_id": question.id,
        "cell": cell,
        "method": cell,
        "status": status,
        "error": f"no reply in {source}" if failed else None,
        "text": text,
        "choice": read.choice,
        "answer": question.answer,
        "correct": read.correct,
        "score": read.score,
        "answer_text": read.answer_text,
        "choice_text": read.choice_text,
        "reading_rule": read.rule,
        "harness_score": score(counted, question) if score else None,
        "groups": json.dumps(dict(question.groups), ensure_ascii=False),
    }
