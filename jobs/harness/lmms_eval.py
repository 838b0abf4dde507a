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
from collections.abc import Iterator, Mapping, Sequence
from datetime import datetime
from pathlib import Path
from typing import Any

import pandas as pd

from jobs.harness.predictions import answer_rows, replies_of
from tango_core.benchmarks.annotations.benchmark import AnnotatedBenchmark
from tango_core.benchmarks.annotations.harness_files import LmmsEvalSamples
from tango_core.benchmarks.annotations.records import Record
from tango_core.benchmarks.annotations.tables import read_rows

# (name of a task, row in its table) or ("key", what the benchmark says names a question)
_Key = tuple[str, str]

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
    replies = replies_of(answers, benchmark, partial=partial)
    facts, protocol = samples_of(benchmark), benchmark.protocols["lmms_eval"]
    by_task: dict[str, list[dict[str, Any]]] = {}
    for record in benchmark.records():
        if record.question.id not in replies:
            continue
        reply = replies[record.question.id]
        row = json.dumps(dict(record.row), indent=2, ensure_ascii=False, default=str)
        prompt = protocol.render(record.question)
        sample = {
            "doc_id": facts.doc_id(record),
            "target": facts.target(record),
            "filtered_resps": [reply],
            "doc_hash": hashlib.sha256(row.encode()).hexdigest(),
            **facts.metrics(record, reply),
            "input": prompt.before + prompt.after,
        }
        by_task.setdefault(facts.task(record), []).append(sample)
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

    Args:
        paths: Files of one run, of all tasks.
        benchmark: What the questions are from, with the protocol to read replies by.
        partial: Skip questions that the files do not hold, instead of counting them failed.

    Raises:
        ValueError: If a file is not of this benchmark, or a sample is none of its questions.
    """
    if not paths:
        raise ValueError("no samples files given; lmms-eval writes them with --log_samples")
    facts, records = samples_of(benchmark), benchmark.records()
    keys = {key: record for record in records for key in _keys(record, facts)}
    tasks = {facts.task(record) for record in records}
    replies: dict[str, str | None] = {}
    for path in paths:
        match = _FILE.fullmatch(path.name)
        if match is None or match[1] not in tasks:
            raise ValueError(
                f"{path}: not samples of {benchmark.name}; "
                f"expected <date>_samples_<task>.jsonl with task {', '.join(sorted(tasks))}"
            )
        for number, sample in enumerate(read_rows(path), start=1):
            stated = _stated_keys(sample, match[1], facts)
            found = next((keys[key] for key in stated if key in keys), None)
            if found is None:
                raise ValueError(
                    f"{path}, line {number}: doc_id {sample.get('doc_id')} is no question of "
                    f"{benchmark.name} under {benchmark.root}; is it another release?"
                )
            replies[found.question.id] = _reply(sample)
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


def _keys(record: Record, facts: LmmsEvalSamples) -> Iterator[_Key]:
    """What a sample about this question can be known by."""
    if (key := facts.key(record)) is not None:
        yield "key", key
    if facts.by_doc_id:
        yield facts.task(record), str(facts.doc_id(record))


def _stated_keys(sample: Mapping[str, Any], task: str, facts: LmmsEvalSamples) -> Iterator[_Key]:
    """What a sample says it is about, the surest first."""
    if (key := facts.key_in(sample)) is not None:
        yield "key", key
    yield task, str(sample.get("doc_id"))


def _reply(sample: Mapping[str, Any]) -> str | None:
    """Return the reply, which older versions nest once more or log without a list."""
    value = sample.get("filtered_resps", sample.get("resps"))
    while isinstance(value, list):
        value = value[0] if value else None
    return None if value is None else str(value)
