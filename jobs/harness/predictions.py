"""Write and read the result files of the two supported evaluation harnesses.

VLMEvalKit: a prediction file is the data set's table with a column `prediction`. VLMEvalKit names
it `<model>_<dataset>` and writes `.xlsx` unless PRED_FORMAT is `tsv` or `json`
(`get_pred_file_format` in `vlmeval/smp/file.py`); we read all three and write `.tsv`, so that no
spreadsheet package is needed. Put a file into its work directory under that name and `run.py --mode
eval` rates it. Each benchmark states its columns (`VLMEvalKitTable`), as `prepare_dataset` of its
module in `vlmeval/dataset` makes them. Lists are written as Python text.

lmms-eval: logged samples (`--log_samples`) are files `<date>_samples_<task>.jsonl` with one object
per question: `doc_id`, `target`, `filtered_resps` (the reply; `resps` only if a filter changed it),
`doc_hash`, `input` (the prompt), and one object per metric (`save_results_samples` in
`lmms_eval/loggers/evaluation_tracker.py`; the metric objects are what `process_results` of a task
returns). `doc_id` is the row of the table on the hub. Each benchmark states its part of these files
(`LmmsEvalSamples`). Since 0.7 a single reply is logged without a list.

Imported replies become rows of `answers/*.parquet`. They are scored by our strict rules under the
benchmark's protocol, so that our runs and harness runs can be compared question by question;
`harness_score` holds the score that lmms-eval logged.
"""

from __future__ import annotations

import csv
import hashlib
import json
import re
from collections.abc import Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from pathlib import Path
from typing import Any
from zipfile import BadZipFile

import pandas as pd
import pyarrow as pa

from pipeline.clips import ANSWER_QUESTIONS
from pipeline.rows import ANSWER, AnswerRow, are_failed, to_table
from pipeline.stages.answer import answer_row, failure, prompt_digest
from tango_core.benchmarks.annotated import AnnotatedBenchmark, Record, plain
from tango_core.benchmarks.protocols.protocol import NO_REPLY, NOT_LOADED, is_failure
from tango_core.benchmarks.tables import is_missing, number_of, read_rows
from tango_core.errors import InputError
from tango_core.types import Prompt


@dataclass(frozen=True)
class Logged:
    """One reply in a result file of a harness.

    Attributes:
        where: File, line and question, for error messages.
        row: Row of its question in the harness's question table.
        key: String that identifies the question; `None` if the file has none.
        reply: The reply; `None` if it is missing.
        score: The harness's score of the reply, in [0, 1]; `None` if the file has none.
        prompt: The text that the model was asked; `None` if the file has none.
    """

    where: str
    row: Hashable
    key: Hashable | None
    reply: str | None
    score: float | None = None
    prompt: str | None = None


Question = tuple[Record, Hashable, Hashable | None]
"""A question with its row and key, as in `Logged`."""


def match_replies(
    logged: Sequence[Logged],
    questions: Iterable[Question],
    benchmark: AnnotatedBenchmark,
    *,
    by_row_alone: bool,
) -> dict[str, Logged]:
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
    replies: dict[str, Logged] = {}
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
        replies[question_id] = one
    return replies


def replies_of(
    answers: pd.DataFrame, benchmark: AnnotatedBenchmark, failed: str, *, partial: bool = False
) -> dict[str, str]:
    """Return question id -> reply for one cell of a run.

    Args:
        answers: Rows of `answers/*.parquet` of one cell and benchmark.
        benchmark: The benchmark.
        failed: Reply to write for questions whose answer failed.
        partial: Whether the run may cover only a part of the questions (`limit`, `shard`).

    Raises:
        InputError: If a question has no row and `partial` is not set, or all have none.
    """
    has_failed = are_failed(pa.Table.from_pandas(answers[["status", "prompt_tokens"]]))
    texts = answers["text"].astype(str).mask(has_failed, failed)
    replies = dict(zip(answers["question_id"].astype(str), texts, strict=True))
    absent = [r.question.id for r in benchmark.records() if r.question.id not in replies]
    if absent and not (partial and replies):
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

    Replies are scored by our rules.

    Args:
        replies: Question id -> reply; `None` and absent questions are failures.
        benchmark: The benchmark.
        cell: Name of the cell; also used as its method.
        source: The imported file, named in the `error` column.
        partial: Skip absent questions instead of counting them as failures.
    """
    protocol, rows = benchmark.protocol, []
    score = protocol.harness_score
    for record in benchmark.records():
        question = record.question
        if partial and question.id not in replies:
            continue
        reply = replies.get(question.id)
        failed = reply is None or is_failure(reply)
        failed |= score is not None and reply == protocol.failed_reply
        status = ANSWER_QUESTIONS.failure if failed else "ok"
        answer = replace(failure(status), text="" if failed else str(reply))
        error = f"no reply in {source}" if failed else None
        facts = AnswerRow(
            benchmark=benchmark.name, video_id=record.video_id, cell=cell, method=cell
        )
        row = answer_row(facts, question, answer, protocol, error)
        # The harness may count its own failure messages like replies.
        counted = protocol.failed_reply if reply in (None, NO_REPLY, NOT_LOADED) else str(reply)
        rows.append(replace(row, harness_score=score(counted, question) if score else None))
    frame: pd.DataFrame = to_table(rows, ANSWER).to_pandas()
    return frame


# Suffixes of video files; ids may contain full stops too.
_VIDEO_SUFFIXES = (".mp4", ".webm", ".mkv", ".avi", ".mov", ".gif")


def write_vlmevalkit(
    answers: pd.DataFrame, benchmark: AnnotatedBenchmark, path: Path, *, partial: bool = False
) -> None:
    """Write one cell of a run as a prediction file.

    Args:
        answers: Rows of `answers/*.parquet` of one cell.
        benchmark: Benchmark of the questions.
        path: `.tsv`; VLMEvalKit expects the name `<model>_<dataset>`.
        partial: Whether the run covers only a part of the questions.

    Raises:
        ValueError: If the answers are not those of one cell.
    """
    assert benchmark.vlmevalkit_table is not None
    records = benchmark.records()
    columns = benchmark.vlmevalkit_table.of(records).columns
    replies = replies_of(answers, benchmark, NO_REPLY, partial=partial)
    rows = [
        {**columns(record), "prediction": replies[record.question.id]}
        for record in records
        if record.question.id in replies
    ]
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("w", encoding="utf-8", newline="") as file:
        writer = csv.DictWriter(file, list(rows[0]), delimiter="\t", quoting=csv.QUOTE_ALL)
        writer.writeheader()
        writer.writerows(rows)


def read_vlmevalkit(
    path: Path, benchmark: AnnotatedBenchmark, *, partial: bool = False
) -> pd.DataFrame:
    """Read a prediction file as rows of `answers/*.parquet`; the cell is the file's stem.

    Rows are matched by `index`, and by question and video where another copy of the release counts
    differently.

    Args:
        path: `.tsv`, `.json` or `.xlsx` (the last needs openpyxl).
        benchmark: Benchmark of the questions, with the protocol by which replies are read.
        partial: Skip questions that the file does not contain, instead of counting them as failed.

    Raises:
        InputError: If the file is damaged or not a prediction file of this benchmark, or is `.xlsx`
            and openpyxl is not installed.
    """
    rows = _read_spreadsheet(path) if path.suffix == ".xlsx" else read_rows(path)
    assert benchmark.vlmevalkit_table is not None
    columns = benchmark.vlmevalkit_table.of(benchmark.records()).columns
    logged = []
    for number, row in enumerate(rows, start=1):
        where = f"{path}, row {number}"
        if "index" not in row or "prediction" not in row:
            raise InputError(
                f"{where}: no columns 'index' and 'prediction'; "
                "this is no prediction file of VLMEvalKit"
            )
        try:
            index = int(number_of(row, "index"))  # spreadsheets may have made a decimal of it
        except InputError as error:
            raise InputError(f"{where}: {error}") from error
        key = _content(row)
        asks = f"{where}: index {index}, which asks {key[0]!r} about {key[1]!r},"
        # VLMEvalKit writes failures as a sentence, so an empty field is an empty reply.
        reply = row["prediction"]
        missing = is_missing(reply) and reply != ""
        logged.append(Logged(asks, index, key, None if missing else str(reply)))
    questions = ((r, r.index, _content(columns(r))) for r in benchmark.records())
    matched = match_replies(logged, questions, benchmark, by_row_alone=False)
    replies = {name: one.reply for name, one in matched.items()}
    return answer_rows(replies, benchmark, path.stem, path, partial=partial)


def _content(columns: Mapping[str, Any]) -> tuple[str, str]:
    """Question and video as a table of this data set names them.

    The video is a file in most tables, whose suffix differs between copies, and an id in others.
    """
    video = str(columns.get("video"))
    path = Path(video)
    name = path.stem if path.suffix.lower() in _VIDEO_SUFFIXES else path.name
    return plain(columns.get("question")), name


def _read_spreadsheet(path: Path) -> list[dict[str, Any]]:
    """Read an `.xlsx` file."""
    try:
        frame = pd.read_excel(path, keep_default_na=False)
    except ImportError:
        raise InputError(
            f"{path} is a spreadsheet, which needs openpyxl; pip install openpyxl, "
            "or run VLMEvalKit with PRED_FORMAT=tsv"
        ) from None
    except (ValueError, KeyError, BadZipFile) as error:
        raise InputError(f"{path} is no spreadsheet of VLMEvalKit: {error}") from error
    return [{str(name): value for name, value in row.items()} for row in frame.to_dict("records")]


_SAMPLES_FILE = re.compile(r"(?:.*_)?samples_(.+)\.jsonl")


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
        benchmark: Benchmark of the questions.
        folder: Receives the files; lmms-eval names it after the model.
        date: Date in the files' names; `None` for now.
        partial: Whether the run covers only a part of the questions.

    Returns:
        The files; for a split with hidden answers also one to hand in, question to answer, where
        the task has such metrics.

    Raises:
        ValueError: If the answers are not those of one cell.
    """
    facts, protocol = benchmark.lmms_eval_samples, benchmark.protocols["lmms_eval"]
    assert facts is not None
    failed = protocol.failed_reply if protocol.harness_score else NOT_LOADED
    replies = replies_of(answers, benchmark, failed, partial=partial)
    by_task: dict[str, list[dict[str, Any]]] = {}
    for record in benchmark.records():
        if record.question.id not in replies:
            continue
        reply = replies[record.question.id]
        row = json.dumps(dict(record.row), indent=2, ensure_ascii=False, default=str)
        prompt = protocol.render(record.question)
        if benchmark.subtitles and protocol.subtitles is not None:
            # The shown lines depend on the video, which may be missing.
            prompt = protocol.subtitles.render(record.question, "<subtitles>")
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
        if benchmark.split in benchmark.hidden_splits and "submission" in samples[0]:
            paths.append(folder / f"{stamp}_submission_{task}.json")
            answered = {id_: own for one in samples for id_, own in one["submission"].items()}
            paths[-1].write_text(json.dumps(answered, indent=4), encoding="utf-8")
    return paths


def read_lmms_eval(
    paths: Sequence[Path], benchmark: AnnotatedBenchmark, *, partial: bool = False
) -> pd.DataFrame:
    """Read logged samples as rows of `answers/*.parquet`; the cell is the folder's name.

    Args:
        paths: Files of one run, of all tasks.
        benchmark: Benchmark of the questions, with the protocol by which replies are read.
        partial: Skip questions that the files do not contain, instead of counting them as failed.

    Raises:
        ValueError: If a file is not of this benchmark, or a sample matches none or several of its
            questions.
    """
    facts = benchmark.lmms_eval_samples
    assert facts is not None
    questions = []
    for record in benchmark.records():
        row = (facts.task_of(record, benchmark.subtitles), str(facts.doc_id(record)))
        questions.append((record, row, facts.key_in(facts.metrics(record, ""))))
    tasks = sorted({task for _, (task, _), _ in questions})
    logged: list[Logged] = []
    for path in paths:
        match = _SAMPLES_FILE.fullmatch(path.name)
        if match is None or match[1] not in tasks:
            raise InputError(
                f"{path}: not samples of {benchmark.name}; "
                f"expected <date>_samples_<task>.jsonl with task {', '.join(tasks)}"
            )
        for number, sample in enumerate(read_rows(path), start=1):
            doc_id = str(sample.get("doc_id"))
            where = f"{path}, line {number}: doc_id {doc_id}"
            key = facts.key_in(sample)
            # Older versions nest the reply once more or log it without a list.
            reply = sample.get("filtered_resps", sample.get("resps"))
            while isinstance(reply, list):
                reply = reply[0] if reply else None
            text = None if reply is None else str(reply)
            score, prompt = logged_score(sample), sample.get("input")
            asked = prompt if isinstance(prompt, str) else None
            logged.append(Logged(where, (match[1], doc_id), key, text, score, asked))
    matched = match_replies(logged, questions, benchmark, by_row_alone=facts.by_doc_id)
    cell = paths[0].absolute().parent.name or "lmms_eval"
    replies = {name: one.reply for name, one in matched.items()}
    rows = answer_rows(replies, benchmark, cell, paths[0], partial=partial)
    scores = rows["question_id"].map({name: one.score for name, one in matched.items()})
    rows["harness_score"] = scores.astype(float).fillna(rows["harness_score"])
    own = benchmark.protocols["lmms_eval"]
    digests = {
        record.question.id: _prompt_digest(own.render(record.question), matched[record.question.id])
        for record in benchmark.records()
        if record.question.id in matched and not benchmark.subtitles  # they depend on the video
    }
    rows["prompt_digest"] = rows["question_id"].map(digests).astype(rows["prompt_digest"].dtype)
    return rows


def _prompt_digest(own: Prompt, logged: Logged) -> str | None:
    """Digest of a logged prompt, as runs record it; `None` if it is unknown.

    A prompt that equals the one of our protocol has the digest of the latter, which also says what
    stands before and after the clip.
    """
    if logged.prompt is None:
        return None
    is_own = logged.prompt == own.before + own.after
    return prompt_digest(own if is_own else Prompt("", logged.prompt))


# Fields of a metric that state what was read from the reply, and what is right.
_READ, _RIGHT = ("pred_answer", "parsed_pred"), ("answer", "gt_answer")


def logged_score(sample: Mapping[str, Any]) -> float | None:
    """Score of a logged sample, in [0, 1]: that of its first metric that states one."""
    for name, metric in sample.items():
        if isinstance(metric, bool | int | float) and name != "doc_id":
            return float(metric)
        if not isinstance(metric, dict):
            continue
        for stated in (metric.get("score"), metric.get("rating")):
            if isinstance(stated, bool | int | float) and stated >= 0:
                return float(stated)
        read, right = (
            next((str(metric[one]) for one in names if one in metric), None)
            for names in (_READ, _RIGHT)
        )
        if read and right is not None:  # nothing read: scored at random by some tasks
            return float(read.strip().lower() == right.strip().lower())
    return None
