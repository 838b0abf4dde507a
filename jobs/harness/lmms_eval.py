"""Write and read lmms-eval's logged samples (`--log_samples`).

A file `<date>_samples_<task>.jsonl` has one object per question: `doc_id`, `target`,
`filtered_resps` (the reply; `resps` only if a filter changed it), `doc_hash`, `input`, and one
object per metric (`save_results_samples` in `lmms_eval/loggers/evaluation_tracker.py`; the metric
objects are what `process_results` of a task returns). The name `mlvu_percetion_score` is theirs.

`doc_id` is the row of the table on the hub. For MLVU that table has another order than the release,
so its samples are matched by their text.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import datetime
from pathlib import Path
from typing import Any

import pandas as pd

from jobs.harness.predictions import answer_rows, plain, replies_of
from tango_core.benchmarks.annotations.benchmark import AnnotatedBenchmark, Record
from tango_core.benchmarks.annotations.tables import read_rows
from tango_core.benchmarks.mvbench_tasks import TASK_OF
from tango_core.benchmarks.protocols import build_protocol
from tango_core.benchmarks.protocols.lmms_eval import before_bracket, first_capital, ranked_letter
from tango_core.benchmarks.scoring.multiple_choice import letter_of, lettered

Sample = dict[str, Any]

_TASKS = {"videomme": "videomme", "longvideobench": "longvideobench_val_v", "mlvu": "mlvu_dev"}
_FILE = re.compile(r"(?:.*_)?samples_(.+)\.jsonl")


def write_lmms_eval(
    answers: pd.DataFrame,
    benchmark: AnnotatedBenchmark,
    folder: Path,
    date: datetime | None = None,
    *,
    partial: bool = False,
) -> list[Path]:
    """Write one cell of a run as logged samples: one file, for MVBench one per task.

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
    protocol = build_protocol(benchmark.name, "lmms_eval")
    by_task: dict[str, list[Sample]] = {}
    for record in benchmark.records():
        if record.question.id not in replies:
            continue
        reply = replies[record.question.id]
        row = json.dumps(dict(record.row), indent=2, ensure_ascii=False, default=str)
        prompt = protocol.render(record.question)
        sample = {
            "doc_id": _doc_id(record, benchmark.name),
            "target": _target(record, benchmark.name),
            "filtered_resps": [reply],
            "doc_hash": hashlib.sha256(row.encode()).hexdigest(),
            **_METRICS[benchmark.name](record, reply),
            "input": prompt.before + prompt.after,
        }
        by_task.setdefault(_task(record, benchmark.name), []).append(sample)
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
        paths: Files of one run; for MVBench those of all tasks.
        benchmark: What the questions are from, with the protocol to read replies by.
        partial: Leave questions out that the files do not hold, instead of counting them failed.

    Raises:
        ValueError: If a file is not of this benchmark, or a sample is none of its questions.
    """
    if not paths:
        raise ValueError("no samples files given; lmms-eval writes them with --log_samples")
    records = benchmark.records()
    keys = {key: record for record in records for key in _keys(record, benchmark.name)}
    tasks = {_task(record, benchmark.name) for record in records}
    replies: dict[str, str | None] = {}
    for path in paths:
        match = _FILE.fullmatch(path.name)
        if match is None or match[1] not in tasks:
            raise ValueError(
                f"{path}: not samples of {benchmark.name}; "
                f"expected <date>_samples_<task>.jsonl with task {', '.join(sorted(tasks))}"
            )
        for number, sample in enumerate(read_rows(path), start=1):
            asked = _asked(sample, match[1])
            found = next((keys[key] for key in asked if key in keys), None)
            if found is None:
                raise ValueError(
                    f"{path}, line {number}: doc_id {sample.get('doc_id')} is no question of "
                    f"{benchmark.name} under {benchmark.root}; is it another release?"
                )
            replies[found.question.id] = _reply(sample)
    cell = paths[0].absolute().parent.name or "lmms_eval"
    return answer_rows(replies, benchmark, cell, paths[0], partial=partial)


def _task(record: Record, benchmark: str) -> str:
    """Name of the task that asks a question."""
    if benchmark == "mvbench":
        return f"mvbench_{TASK_OF[record.question.groups['task']].stem}"
    return _TASKS[benchmark]


def _doc_id(record: Record, benchmark: str) -> int:
    """Row of a question in its task's table."""
    if benchmark == "mvbench":
        return int(record.question.id.rpartition("-")[2])
    return record.index


def _target(record: Record, benchmark: str) -> str:
    """What `doc_to_target` gives: a letter, a text, or an index."""
    answer, choices = record.question.answer, record.question.choices
    if answer is None:
        return str(record.row.get("answer", ""))
    if benchmark == "mvbench":
        return choices[answer]
    return str(answer) if benchmark == "longvideobench" else letter_of(answer)


def _letter(record: Record) -> str:
    """The right letter, or "" if there is none."""
    return "" if record.question.answer is None else letter_of(record.question.answer)


def _videomme(record: Record, reply: str) -> Sample:
    """Video-MME's metric."""
    groups = record.question.groups
    letter = ranked_letter(reply, "ABCD")
    return {
        "videomme_perception_score": {
            "question_id": record.question.id,
            "duration": groups["duration"],
            "category": groups["domain"],
            "sub_category": groups["sub_category"],
            "task_category": groups["task_type"],
            "pred_answer": letter,
            "answer": _letter(record),
            "score": float(letter == _letter(record)),
            "videoID": record.video_id,
        }
    }


def _mvbench(record: Record, reply: str) -> Sample:
    """MVBench's metric."""
    score = build_protocol("mvbench", "lmms_eval").harness_score
    assert score is not None
    value = int(score(reply, record.question) or 0)
    return {
        "mvbench_accuracy": {"pred_answer": reply, "gt_answer": _letter(record), "score": value}
    }


def _longvideobench(record: Record, reply: str) -> Sample:
    """LongVideoBench's metric; where lmms-eval would guess, the letter is empty."""
    question = record.question
    return {
        "lvb_acc": {
            "id": question.id,
            "duration_group": int(question.groups["duration"]),
            "question_category": question.groups["category"],
            "answer": _letter(record),
            "parsed_pred": first_capital(reply),
        },
        "submission": {question.id: reply},
    }


def _mlvu(record: Record, reply: str) -> Sample:
    """MLVU's metric, whose id is the question with its options."""
    return {
        "mlvu_percetion_score": {
            "question_id": _cell(record),
            "task_type": record.question.groups["task"],
            "pred_answer": before_bracket(reply),
            "answer": _letter(record),
        }
    }


_METRICS: Mapping[str, Callable[[Record, str], Sample]] = {
    "videomme": _videomme,
    "mvbench": _mvbench,
    "longvideobench": _longvideobench,
    "mlvu": _mlvu,
}


def _cell(record: Record) -> str:
    """Question and options as MLVU's table on the hub has them."""
    options = lettered(record.question.choices, "({letter}) {text}")
    return "\n".join([record.question.text, *options])


def _keys(record: Record, benchmark: str) -> Iterable[tuple[str, str]]:
    """What a sample about this question can be known by."""
    task = _task(record, benchmark)
    if benchmark == "mlvu":
        yield "question", f"{record.question.groups['task']} {plain(_cell(record))}"
        return
    if benchmark != "mvbench":
        yield "id", record.question.id
    yield "row", f"{task} {_doc_id(record, benchmark)}"


def _asked(sample: Mapping[str, Any], task: str) -> Iterable[tuple[str, str]]:
    """What a sample says it is about, the surest first."""
    for name, value in sample.items():
        if isinstance(value, dict) and name.startswith("mlvu"):
            yield "question", f"{value.get('task_type')} {plain(value.get('question_id'))}"
        elif isinstance(value, dict) and name in ("lvb_acc", "videomme_perception_score"):
            yield "id", str(value.get("id", value.get("question_id")))
    yield "row", f"{task} {sample.get('doc_id')}"


def _reply(sample: Mapping[str, Any]) -> str | None:
    """Return the reply, which older versions nest once more or log without a list."""
    value = sample.get("filtered_resps", sample.get("resps"))
    while isinstance(value, list):
        value = value[0] if value else None
    return None if value is None else str(value)
