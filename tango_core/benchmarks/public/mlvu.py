"""MLVU, dev set: the seven multiple-choice tasks on videos of three minutes to two hours.

Zhou et al., "MLVU: Benchmarking Multi-task Long Video Understanding", 2024,
https://arxiv.org/abs/2406.04264. Data: `MLVU/MVLU` on the Hugging Face hub, or `sy1998/MLVU_dev`,
the same questions as lmms-eval reads them. Prompts and rules: VLMEvalKit,
`vlmeval/dataset/mlvu.py`; lmms-eval, `lmms_eval/tasks/mlvu`. `lmms_eval@2024-10` counts as the copy
did that the published latencies were made with, before change 364 of 2024-10-27.

The two harnesses mean different things by M-Avg: VLMEvalKit the share of right answers, which is
`accuracy`, and lmms-eval the mean over the seven tasks, which is the mean of
`accuracy_by["task"]`. The published comparisons use the former.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from pathlib import PurePosixPath
from typing import Any, ClassVar

from tango_core.benchmarks import annotated, tables
from tango_core.benchmarks.base import PaperColumn
from tango_core.benchmarks.protocols import harnesses
from tango_core.benchmarks.protocols.protocol import FAILED_REPLY, PromptTemplate, in_versions
from tango_core.benchmarks.releases import Release
from tango_core.benchmarks.scoring.multiple_choice import BRACKETED, LETTERS, letter_of, lettered
from tango_core.errors import InputError
from tango_core.types import Question

# task -> stem of its JSON file and name of its folder of videos
_NAMES = ("plotQA", "needle", "ego", "count", "order", "anomaly_reco", "topic_reasoning")
TASKS = {name: f"{number}_{name}" for number, name in enumerate(_NAMES, start=1)}
# White space behind the last option is lost.
VLMEVALKIT = PromptTemplate(
    "Question: {question}\nOptions:\n{options}\nOnly give the best option.",
    before="Carefully watch this video and pay attention to every detail. Based on your "
    "observations, select the best option that accurately addresses the question.",
    option=BRACKETED,
    strip=True,
)
# In lmms-eval's table the text of question and options ends in a line break: hence an empty line.
LMMS_EVAL = PromptTemplate(
    "{question}\n{options}\n\nOnly give the best option.\nBest option: (", option=BRACKETED
)


def before_bracket(reply: str) -> str:
    """Return the character before the first closing bracket, or the whole reply without one."""
    end = reply.find(")")
    return reply if end < 0 else reply[end - 1 : end]


def score_vlmevalkit(reply: str, question: Question, stated: bool = True) -> float:
    """1 if right, 0 if wrong, -1 for VLMEvalKit's failures: M-Avg adds the scores.

    The letter is the character before the first closing bracket, or the whole reply. A question
    whose answer is none of its options (two in the public release) is never right. Without
    `stated`, as before change 1552, "The correct answer is B" counts only where B is among the last
    four words.
    """
    if FAILED_REPLY in reply:
        return -1.0
    if question.answer is None:
        return 0.0
    right = before_bracket(reply) == letter_of(question.answer)
    return float(right or harnesses.infers(reply, question, stated=stated))


def score_lmms_eval(reply: str, question: Question) -> float:
    """1 if the ranked formats give the right letter."""
    return harnesses.ranked_score(reply, question) or 0.0


def score_lmms_eval_2024_10(reply: str, question: Question) -> float:
    """1 if the character before the first closing bracket, or the whole reply, is the right letter.

    "B." and "B: a bag" are wrong.
    """
    answer = question.answer
    return float(answer is not None and before_bracket(reply.strip()) == letter_of(answer))


def sample_metrics(record: annotated.Record, reply: str) -> dict[str, Any]:
    """The metric of lmms-eval's task, whose id is the question with its options."""
    question = record.question
    return {
        "mlvu_percetion_score": {
            "question_id": "\n".join([question.text, *lettered(question.choices, BRACKETED), ""]),
            "task_type": question.groups["task"],
            "pred_answer": harnesses.ranked_letter(reply),
            "answer": annotated.right_letter(record),
        }
    }


def columns(record: annotated.Record) -> dict[str, Any]:
    """Columns of `MLVU_MCQ.tsv`."""
    task = record.question.groups["task"]
    return {
        "task_type": task,
        "prefix": f"./MLVU/video/{TASKS[task]}",
        "duration": record.row.get("duration", ""),
        **annotated.text_answer_columns(record),
    }


_LICENCE = "CC-BY-NC-SA 4.0"


class MLVUBenchmark(annotated.AnnotatedBenchmark):
    """MLVU dev from its seven JSON files, VLMEvalKit's `MLVU_MCQ.tsv`, or lmms-eval's one table.

    `"dev"` and the recipe's default name `"test"` are the same split.
    """

    name = "mlvu"
    title = "MLVU"
    layout = (
        "MLVU/json/1_plotQA.json to 7_topic_reasoning.json with MLVU/video/<stem>/, "
        "or one table with video_name beside the videos"
    )
    task_files: ClassVar = {task: f"{stem}.json" for task, stem in TASKS.items()}
    task_folders = ("MLVU/json", "json", ".")
    annotations = (
        *("MLVU_MCQ.tsv", "data/test-*.parquet", "test-*.parquet"),
        *("mlvu_dev.*json*", "mlvu_dev.parquet"),
    )
    video_columns = ("video", "video_name")
    answer_form = "text"
    length_column = "duration"
    splits: ClassVar = {"test": 2174, "dev": 2174}
    protocols: ClassVar = {
        **in_versions(
            "vlmevalkit", VLMEVALKIT, score_vlmevalkit, partial(score_vlmevalkit, stated=False)
        ),
        **in_versions("lmms_eval", LMMS_EVAL, score_lmms_eval, score_lmms_eval_2024_10, macro=True),
    }
    paper_column = PaperColumn(4)
    macro_group = "task"
    macro_title = "M-Avg"
    vlmevalkit_table = annotated.VLMEvalKitTable("MLVU_MCQ", columns)
    lmms_eval_samples = annotated.LmmsEvalSamples(
        "mlvu_dev",
        sample_metrics,
        # The name of the metric differs between versions.
        key_in=annotated.fields_of_metric("mlvu", "task_type", "question_id"),
        by_doc_id=False,
    )
    # Only the seven tasks with options: the release also has two that are answered in free text.
    releases = (
        Release(
            repository="MLVU/MVLU",
            licence=_LICENCE,
            annotations=tuple(f"MLVU/json/{stem}.json" for stem in TASKS.values()),
            videos=tuple(f"MLVU/video/{stem}/*" for stem in TASKS.values()),
            gated="who leaves contact information on the hub",
        ),
        Release(
            repository="sy1998/MLVU_dev",
            licence=f"{_LICENCE}, as the release it was made from",
            annotations=("data/test-*.parquet", "*.json"),
            videos=("*video_part_*.zip",),
            into=None,
        ),
    )

    def _record(
        self, index: int, number: int, row: tables.Row, table: annotated.Table
    ) -> annotated.Record:
        record = super()._record(index, number, row, table)
        stem = TASKS[record.question.groups["task"]]
        path = self._video_path(self._file(row), f"MLVU/video/{stem}", f"video/{stem}", stem)
        folder, name = PurePosixPath(path).parent.name, PurePosixPath(path).stem
        video = f"{folder}/{name}" if folder in TASKS.values() else name
        return replace(record, video_id=video, path=path)

    def _id(self, row: tables.Row, video: str, number: int) -> str:
        return f"{self._groups(row)['task']}-{number}"

    def _groups(self, row: tables.Row) -> dict[str, str]:
        task = tables.text_of(row, "task_type")
        task = "needle" if task == "findNeedle" else task
        if task not in TASKS:
            raise InputError(f"unknown task {task!r}; known are {', '.join(TASKS)}")
        return {"task": task}

    def _question(self, row: tables.Row) -> tuple[str, tuple[str, ...]]:
        """In lmms-eval's table the question holds the options, also where there is a list."""
        both = tables.options_in(tables.text_of(row, "question")) if "video_name" in row else None
        return super()._question(row) if both is None else both

    def _answer(self, row: tables.Row, choices: Sequence[str]) -> int | None:
        """The answer is an option's text; in lmms-eval's table it may be a letter."""
        written = tables.answer_text_of(row).strip()
        if "video_name" in row and re.fullmatch(r"\(?[A-Z]\)?", written):
            index = LETTERS.index(written.strip("() "))
            return index if index < len(choices) else None
        return super()._answer(row, choices)
