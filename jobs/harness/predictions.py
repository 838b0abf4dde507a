"""Convert answers to and from the result files of the two supported evaluation harnesses.

| harness | file | module |
|---|---|---|
| VLMEvalKit | `<model>_<dataset>.tsv` or `.json` (reads also `.xlsx`) | `jobs.harness.vlmevalkit` |
| lmms-eval | `<date>_samples_<task>.jsonl` | `jobs.harness.lmms_eval` |

Imported replies become rows of `answers/*.parquet`. They are scored by our strict rules under the
benchmark's protocol, so that our runs and harness runs can be compared question by question.
"""

from __future__ import annotations

import json
from collections.abc import Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import pandas as pd
import pyarrow as pa

from pipeline.clips import ANSWER_QUESTIONS
from pipeline.rows import ANSWER, AnswerRow, are_failed, to_table
from tango_core.benchmarks.annotated import AnnotatedBenchmark, Record
from tango_core.benchmarks.protocols.protocol import NO_REPLY, NOT_LOADED, is_failure
from tango_core.benchmarks.scoring.judge import judge
from tango_core.errors import InputError


@dataclass(frozen=True)
class Logged:
    """One reply in a result file of a harness.

    Attributes:
        where: File, line and question, for error messages.
        row: Row of its question in the harness's question table.
        key: String that identifies the question; `None` if the file has none.
        reply: The reply; `None` if it is missing.
    """

    where: str
    row: Hashable
    key: Hashable | None
    reply: str | None


Question = tuple[Record, Hashable, Hashable | None]
"""A question with its row and key, as in `Logged`."""


def match_replies(
    logged: Sequence[Logged],
    questions: Iterable[Question],
    benchmark: AnnotatedBenchmark,
    *,
    by_row_alone: bool,
) -> dict[str, str | None]:
    """Assign every reply to its question; returns question id -> reply.

    If all replies are in the order of the question table, the row decides. Otherwise the row is
    unreliable and the key decides, so replies to several questions with the same key cannot be
    assigned.

    Args:
        logged: Replies from the files of one run.
        questions: All questions of the benchmark.
        benchmark: The benchmark.
        by_row_alone: Use the row of a reply whose key matches no question.

    Raises:
        InputError: If a reply matches no question or several ones, or if a question has two
            replies.
    """
    by_row: dict[Hashable, tuple[Record, Hashable | None]] = {}
    by_key: dict[Hashable, list[Record]] = {}
    for record, row, key in questions:
        by_row[row] = record, key
        if key is not None:
            by_key.setdefault(key, []).append(record)
    in_order = all(one.row in by_row and one.key in (None, by_row[one.row][1]) for one in logged)
    replies: dict[str, str | None] = {}
    for one in logged:
        in_row = [by_row[one.row][0]] if one.row in by_row else []
        found = in_row
        if one.key is None or not in_order:
            found = by_key.get(one.key, in_row if by_row_alone else [])
        if len(found) != 1:
            problem = f"matches {len(found)} questions" if found else "matches no question"
            same = " with the same text" if found else ""
            raise InputError(
                f"{one.where} {problem} of {benchmark.name}{same} under {benchmark.root}; "
                "set the root to the release of the benchmark that the harness used"
            )
        question_id = found[0].question.id
        if question_id in replies:
            raise InputError(
                f"{one.where}: a second reply to question {question_id} of {benchmark.name}; "
                "import files of one run"
            )
        replies[question_id] = one.reply
    return replies


def replies_of(
    answers: pd.DataFrame, benchmark: AnnotatedBenchmark, failed: str, *, partial: bool = False
) -> dict[str, str]:
    """Return question id -> reply for one cell of a run.

    Args:
        answers: Rows of `answers/*.parquet` of one cell.
        benchmark: The benchmark; rows of other benchmarks are skipped.
        failed: Reply to write for questions whose answer failed.
        partial: Whether the run may cover only a part of the questions (`limit`, `shard`).

    Raises:
        InputError: If the rows are of several cells, or a question has no row and `partial` is not
            set.
    """
    rows = answers[answers["benchmark"] == benchmark.name]
    cells = sorted(set(rows["cell"]))
    if len(cells) != 1:
        raise InputError(
            f"a result file holds one cell of one benchmark; for {benchmark.name} these answers "
            f"have {', '.join(map(repr, cells)) or 'none'}; keep the rows of one"
        )
    has_failed = are_failed(pa.Table.from_pandas(rows[["status", "prompt_tokens"]]))
    replies = {
        str(question): failed if has_no_reply else str(text)
        for question, text, has_no_reply in zip(
            rows["question_id"], rows["text"], has_failed, strict=True
        )
    }
    absent = [r.question.id for r in benchmark.records() if r.question.id not in replies]
    if absent and not partial:
        raise InputError(
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
    """Convert imported replies into rows of `answers/*.parquet`, one per question.

    Args:
        replies: Question id -> reply; `None` and absent questions are failures.
        benchmark: The benchmark.
        cell: Name of the cell; also used as its method.
        source: The imported file, named in the `error` column.
        partial: Skip absent questions instead of counting them as failures.
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
) -> AnswerRow:
    """Build one row; a reply is scored by our rules."""
    question, protocol = record.question, benchmark.protocol
    failed = reply is None or is_failure(reply)
    # The harness may count its own failure messages like replies.
    counted = protocol.failed_reply if reply in (None, NO_REPLY, NOT_LOADED) else str(reply)
    text = "" if failed or reply is None else reply
    read = judge(None if failed else text, question, protocol.read_choice)
    score = protocol.harness_score
    status = ANSWER_QUESTIONS.failure if failed else "ok" if read.readable else "unparsed"
    return AnswerRow(
        benchmark=benchmark.name,
        video_id=record.video_id,
        question_id=question.id,
        cell=cell,
        method=cell,
        status=status,
        error=f"no reply in {source}" if failed else None,
        text=text,
        choice=read.choice,
        answer=question.answer,
        correct=read.correct,
        score=read.score,
        answer_text=read.answer_text,
        choice_text=read.choice_text,
        reading_rule=read.rule,
        harness_score=score(counted, question) if score else None,
        groups=json.dumps(dict(question.groups), ensure_ascii=False),
    )
