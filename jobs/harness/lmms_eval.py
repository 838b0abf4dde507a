"""Write and read lmms-eval's logged samples (`--log_samples`).

A file `<date>_samples_<task>.jsonl` has one object per question: `doc_id`, `target`,
`filtered_resps` (the reply; `resps` only if a filter changed it), `doc_hash`, `input`, and one
object per metric (`save_results_samples` in `lmms_eval/loggers/evaluation_tracker.py`; the metric
objects are what `process_results` of a task returns). `doc_id` is the row of the table on the hub.
Each benchmark states what is its own in these files (`LmmsEvalSamples`).
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any

import pandas as pd

from jobs.harness.predictions import answer_rows, replies_of
from tango_core.benchmarks.annotated import AnnotatedBenchmark, LmmsEvalSamples, Record
from tango_core.benchmarks.protocols.protocol import NOT_LOADED, Protocol
from tango_core.benchmarks.tables import read_rows
from tango_core.types import Prompt

_FILE = re.compile(r"(?:.*_)?samples_(.+)\.jsonl")


def write_lmms_eval(
    answers: pd.DataFrame,
    benchmark: AnnotatedBenchmark,
    folder: Path,
    date: datetime | None = None,
    *,
    partial: bool = False,
) -> list[Path]:
    """Write one cell of a run as logged samples: one file per task.

    Args:
        answers: Rows of `answers/*.parquet` of one cell.
        benchmark: What the questions are from.
        folder: Receives the files; lmms-eval calls it after the model.
        date: Begins the files' names; now without one.
        partial: The run was asked a part of the questions; the files hold only those.

    Returns:
        The files.

    Raises:
        ValueError: If the answers are not those of one cell.
    """
    replies = replies_of(answers, benchmark, NOT_LOADED, partial=partial)
    facts, protocol = samples_of(benchmark), benchmark.protocols["lmms_eval"]
    by_task: dict[str, list[dict[str, Any]]] = {}
    for record in benchmark.records():
        if record.question.id not in replies:
            continue
        reply = replies[record.question.id]
        row = json.dumps(dict(record.row), indent=2, ensure_ascii=False, default=str)
        prompt = _input(protocol, record, benchmark.subtitles)
        sample = {
            "doc_id": facts.doc_id(record),
            "target": facts.target(record),
            "filtered_resps": [reply],
            "doc_hash": hashlib.sha256(row.encode()).hexdigest(),
            **facts.metrics(record, reply),
            "input": prompt.before + prompt.after,
        }
        by_task.setdefault(facts.task_of(record, benchmark.subtitles), []).append(sample)
    folder.mkdir(parents=True, exist_ok=True)
    stamp = (date or datetime.now()).strftime("%Y%m%d_%H%M%S")
    paths = []
    for task, samples in by_task.items():
        paths.append(folder / f"{stamp}_samples_{task}.jsonl")
        lines = [json.dumps(sample, ensure_ascii=False) for sample in samples]
        paths[-1].write_text("\n".join([*lines, ""]), encoding="utf-8")
    return paths


def read_lmms_eval(
    paths: Sequence[Path], benchmark: AnnotatedBenchmark, *, partial: bool = False
) -> pd.DataFrame:
    """Read logged samples as rows of `answers/*.parquet`; the cell is the folder's name.

    A sample is about the question in the row `doc_id` if it does not state another one; else about
    the one question it states.

    Args:
        paths: Files of one run, of all tasks.
        benchmark: What the questions are from, with the protocol to read replies by.
        partial: Skip questions that the files do not hold, instead of counting them failed.

    Raises:
        ValueError: If a file is not of this benchmark, or a sample is about none of its questions,
            or may be about several.
    """
    if not paths:
        raise ValueError("no samples files given; lmms-eval writes them with --log_samples")
    facts = samples_of(benchmark)
    questions = _Questions(benchmark, facts)
    samples: list[_Logged] = []
    for path in paths:
        match = _FILE.fullmatch(path.name)
        if match is None or match[1] not in questions.tasks:
            raise ValueError(
                f"{path}: not samples of {benchmark.name}; "
                f"expected <date>_samples_<task>.jsonl with task "
                f"{', '.join(sorted(questions.tasks))}"
            )
        samples += [
            _Logged(path, number, match[1], str(row.get("doc_id")), facts.key_in(row), _reply(row))
            for number, row in enumerate(read_rows(path), start=1)
        ]
    in_order = all(questions.agrees(sample) for sample in samples)
    replies: dict[str, str | None] = {}
    for sample in samples:
        found = questions.find(sample, in_order)
        if len(found) != 1:
            problem = (
                f"may be {len(found)} questions of {benchmark.name} with the same text"
                if found
                else f"is no question of {benchmark.name}"
            )
            raise ValueError(
                f"{sample.where}: doc_id {sample.doc_id} {problem} under {benchmark.root}; "
                "set the root to the copy of the release that was asked"
            )
        question_id = found[0].question.id
        if question_id in replies:
            raise ValueError(
                f"{sample.where}: a second reply to question {question_id} of {benchmark.name}; "
                "import files of one run"
            )
        replies[question_id] = sample.reply
    cell = paths[0].absolute().parent.name or "lmms_eval"
    return answer_rows(replies, benchmark, cell, paths[0], partial=partial)


def samples_of(benchmark: AnnotatedBenchmark) -> LmmsEvalSamples:
    """Return what the benchmark states about its tasks.

    Raises:
        ValueError: If lmms-eval has no such task.
    """
    if benchmark.lmms_eval_samples is None:
        raise ValueError(f"benchmark {benchmark.name!r} is not in lmms-eval")
    return benchmark.lmms_eval_samples


def _input(protocol: Protocol, record: Record, subtitled: bool) -> Prompt:
    """The words of a question; which subtitles were shown depends on a video that is not here."""
    if subtitled and protocol.subtitles is not None:
        return protocol.subtitles.render(record.question, "<subtitles>")
    return protocol.render(record.question)


@dataclass(frozen=True)
class _Logged:
    """One logged sample: where it stands, what it is about, the reply."""

    path: Path
    line: int
    task: str
    doc_id: str
    key: str | None
    reply: str | None

    @property
    def where(self) -> str:
        """File and line, for messages."""
        return f"{self.path}, line {self.line}"


class _Questions:
    """The questions of a benchmark, as samples may name them.

    Args:
        benchmark: It holds all questions.
        facts: What the benchmark states about its tasks.
    """

    def __init__(self, benchmark: AnnotatedBenchmark, facts: LmmsEvalSamples) -> None:
        self._facts = facts
        self._by_row: dict[tuple[str, str], Record] = {}
        self._by_key: dict[str, list[Record]] = {}
        for record in benchmark.records():
            task = facts.task_of(record, benchmark.subtitles)
            self._by_row[task, str(facts.doc_id(record))] = record
            if (key := self._key(record)) is not None:
                self._by_key.setdefault(key, []).append(record)
        self.tasks = {task for task, _ in self._by_row}

    def _key(self, record: Record) -> str | None:
        """The text by which a sample says that it is about a question."""
        return self._facts.key_in(self._facts.metrics(record, ""))

    def agrees(self, sample: _Logged) -> bool:
        """Whether the row `doc_id` is a question that the sample can be about."""
        row = self._by_row.get((sample.task, sample.doc_id))
        return row is not None and sample.key in (None, self._key(row))

    def find(self, sample: _Logged, in_order: bool) -> Sequence[Record]:
        """Return the questions that a sample may be about; exactly one if that is certain.

        Args:
            sample: The sample.
            in_order: Whether all samples agree with their rows. In a table of another order a row
                says nothing about which of several questions with the same text was asked.
        """
        row = self._by_row.get((sample.task, sample.doc_id))
        by_row = [row] if row is not None else []
        by_row_alone = by_row if self._facts.by_doc_id else []
        if sample.key is None:
            return by_row_alone
        return by_row if in_order else self._by_key.get(sample.key, by_row_alone)


def _reply(sample: Mapping[str, Any]) -> str | None:
    """Return the reply, which older versions nest once more or log without a list."""
    value = sample.get("filtered_resps", sample.get("resps"))
    while isinstance(value, list):
        value = value[0] if value else None
    return None if value is None else str(value)
