"""What a benchmark states about its files in the two evaluation harnesses.

`jobs.harness` writes and reads the files; a benchmark only says what is its own in them.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from tango_core.benchmarks.annotations.records import Record
from tango_core.benchmarks.scoring.multiple_choice import letter_of

Sample = Mapping[str, Any]


@dataclass(frozen=True)
class VLMEvalKitTable:
    """A data set of VLMEvalKit.

    Attributes:
        dataset: Its name, as it stands in the names of prediction files.
        columns: Question -> columns of the data set's table, in order, without `prediction`.
        cut: The data set of a copy of the release in which no question names a part of a file,
            because clips are cut already; `None` if that is the same one.
    """

    dataset: str
    columns: Callable[[Record], dict[str, Any]]
    cut: VLMEvalKitTable | None = None

    def of(self, records: Sequence[Record]) -> VLMEvalKitTable:
        """The data set of these questions, which are all of a release."""
        if self.cut is not None and all(record.clip is None for record in records):
            return self.cut
        return self


def row_number(record: Record) -> int:
    """The `doc_id` of a task that asks all questions of one table."""
    return record.index


def no_key(_: Any) -> None:
    """For a task whose samples are known by `doc_id` alone."""
    return


@dataclass(frozen=True)
class LmmsEvalSamples:
    """The logged samples of lmms-eval's tasks.

    Attributes:
        task: Question -> the task that asks it, as it stands in the names of files.
        target: Question -> what the task's `doc_to_target` gives: a letter, a text or an index.
        metrics: (question, reply) -> the objects that the task's `process_results` returns.
        doc_id: Question -> its row in the task's table.
        key: Question -> a text by which a sample is known to be about it; `None` for none. Where
            several questions have the same text, `doc_id` tells them apart.
        key_in: Sample -> the same text as the sample states it; `None` if it does not.
        subtitled_task: Name of the task that asks all questions with subtitles; `None` for none.
        by_doc_id: Whether `doc_id` alone names a question. Not where the task's table has another
            order than the release: a sample must state its text as well.
    """

    task: Callable[[Record], str]
    target: Callable[[Record], str]
    metrics: Callable[[Record, str], dict[str, Any]]
    doc_id: Callable[[Record], int] = row_number
    key: Callable[[Record], str | None] = no_key
    key_in: Callable[[Sample], str | None] = no_key
    by_doc_id: bool = True
    subtitled_task: str | None = None


def plain(text: object) -> str:
    """Fold white space, which spreadsheets and tables change."""
    return " ".join(str(text).split())


def right_letter(record: Record) -> str:
    """The right letter, or "" if there is none."""
    return "" if record.question.answer is None else letter_of(record.question.answer)


def written_answer(record: Record) -> str:
    """What the release says in place of an answer that is none of the options."""
    return str(record.row.get("answer", ""))


def letter_target(record: Record) -> str:
    """`target` of the tasks whose answers are letters."""
    return right_letter(record) or written_answer(record)


def text_answer_columns(record: Record) -> dict[str, Any]:
    """Columns of VLMEvalKit's tables in which the answer is an option's text."""
    question = record.question
    known = question.answer is not None
    return {
        "video": record.row.get("video") or record.row.get("video_name"),
        "question": question.text,
        "answer": question.choices[question.answer or 0] if known else record.row["answer"],
        "candidates": str(list(question.choices)),
        "index": record.index,
    }
