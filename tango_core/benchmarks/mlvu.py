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
from functools import partial
from pathlib import Path
from typing import Any, ClassVar

from tango_core.benchmarks import annotated, tables
from tango_core.benchmarks.annotated import AnnotatedBenchmark, Record, Table
from tango_core.benchmarks.base import PaperColumn
from tango_core.benchmarks.protocols import harnesses
from tango_core.benchmarks.protocols.protocol import FAILED_REPLY, after_clip, in_versions
from tango_core.benchmarks.releases import Release, ReleasePart
from tango_core.benchmarks.scoring.multiple_choice import BRACKETED, LETTERS, letter_of, lettered
from tango_core.benchmarks.tables import Row
from tango_core.errors import InputError, MissingFileError
from tango_core.types import Prompt, Question

# task -> stem of its JSON file and name of its folder of videos
TASKS = {
    "plotQA": "1_plotQA",
    "needle": "2_needle",
    "ego": "3_ego",
    "count": "4_count",
    "order": "5_order",
    "anomaly_reco": "6_anomaly_reco",
    "topic_reasoning": "7_topic_reasoning",
}
_TASK = (
    "Carefully watch this video and pay attention to every detail. Based on your observations, "
    "select the best option that accurately addresses the question."
)
_BEST = "Only give the best option."


def render_vlmevalkit(question: Question) -> Prompt:
    """VLMEvalKit: the task without a line break, the clip, the question."""
    return Prompt(before=_TASK, after=f"{harnesses.with_bracketed_options(question)}\n{_BEST}")


def render_lmms_eval(question: Question) -> Prompt:
    """Task `mlvu_dev`, which ends with the beginning of a reply."""
    # In its table the text of question and options ends in a line break: hence an empty line.
    return after_clip(f"{_table_text(question)}\n{_BEST}\nBest option: (")


def _table_text(question: Question) -> str:
    """Question and options as lmms-eval's table on the hub has them."""
    return "\n".join([question.text, *lettered(question.choices, BRACKETED), ""])


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


def sample_metrics(record: Record, reply: str) -> dict[str, Any]:
    """The metric of lmms-eval's task, whose id is the question with its options."""
    return {
        "mlvu_percetion_score": {
            "question_id": _table_text(record.question),
            "task_type": record.question.groups["task"],
            "pred_answer": harnesses.ranked_letter(reply),
            "answer": annotated.right_letter(record),
        }
    }


def columns(record: Record) -> dict[str, Any]:
    """Columns of `MLVU_MCQ.tsv`."""
    task = record.question.groups["task"]
    return {
        "task_type": task,
        "prefix": f"./MLVU/video/{TASKS[task]}",
        "duration": record.row.get("duration", ""),
        **annotated.text_answer_columns(record),
    }


_JSON_FOLDERS = ("MLVU/json", "json", ".")
_LICENCE = "CC-BY-NC-SA 4.0"


class MLVUBenchmark(AnnotatedBenchmark):
    """MLVU dev from its seven JSON files, VLMEvalKit's `MLVU_MCQ.tsv`, or lmms-eval's one table.

    `"dev"` and the recipe's default name `"test"` are the same split.
    """

    name = "mlvu"
    title = "MLVU"
    layout = (
        "MLVU/json/1_plotQA.json to 7_topic_reasoning.json with MLVU/video/<stem>/, "
        "or one table with video_name beside the videos"
    )
    annotations = (
        "MLVU_MCQ.tsv",
        "data/test-*.parquet",
        "test-*.parquet",
        "mlvu_dev.*json*",
        "mlvu_dev.parquet",
        *annotated.in_hub_cache("sy1998/MLVU_dev", "data/test-*.parquet"),
    )
    splits: ClassVar = {"test": 2174, "dev": 2174}
    protocols: ClassVar = {
        **in_versions(
            "vlmevalkit",
            render_vlmevalkit,
            score_vlmevalkit,
            partial(score_vlmevalkit, stated=False),
        ),
        **in_versions(
            "lmms_eval", render_lmms_eval, score_lmms_eval, score_lmms_eval_2024_10, macro=True
        ),
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
            "MLVU/MVLU",
            (
                ReleasePart("annotations", tuple(f"MLVU/json/{it}.json" for it in TASKS.values())),
                ReleasePart("videos", tuple(f"MLVU/video/{it}/*" for it in TASKS.values())),
            ),
            _LICENCE,
            gated="who leaves contact information on the hub",
        ),
        Release(
            "sy1998/MLVU_dev",
            (
                ReleasePart("annotations", ("data/test-*.parquet", "*.json"), any_of=True),
                ReleasePart("videos", ("*video_part_*.zip",)),
            ),
            f"{_LICENCE}, as the release it was made from",
        ),
    )

    def _tables(self) -> list[Table]:
        stems = TASKS.values()
        first = annotated.find_file(
            self.root, [f"{f}/{stem}.json" for f in _JSON_FOLDERS for stem in stems]
        )
        if first is None:
            return super()._tables()
        files = {task: first.parent / f"{stem}.json" for task, stem in TASKS.items()}
        missing = [path.name for path in files.values() if not path.is_file()]
        if missing:
            raise MissingFileError(
                f"MLVU annotations under {first.parent} are incomplete, "
                f"missing {', '.join(missing)}; expected layout: {self.layout}"
            )
        return [Table(path, tables.read_rows(path), task) for task, path in files.items()]

    def _record(self, index: int, number: int, row: Row, table: Table) -> Record:
        if all(not str(row.get(name) or "").strip() for name in ("question", "answer")):
            raise annotated.BlankRowError("question and answer are empty")
        task = table.task or tables.text_of(row, "task_type")
        task = "needle" if task == "findNeedle" else task
        if task not in TASKS:
            raise InputError(f"unknown task {task!r}; known are {', '.join(TASKS)}")
        text, choices = _question(row)
        written = tables.answer_text_of(row)
        answer = _answer(written, choices, is_letter="video_name" in row)
        path = Path(self._path(TASKS[task], tables.text_of(row, "video", "video_name")))
        in_task_folder = path.parent.name in TASKS.values()
        videos = path.parent.parent if in_task_folder else path.parent
        return Record(
            video_id=path.relative_to(videos).with_suffix("").as_posix(),
            path=str(path),
            question=Question(
                id=f"{task}-{number}" if table.task else f"{task}-{index}",
                text=text,
                choices=choices,
                answer=answer,
                groups={"task": task},
            ),
            notes=tuple(annotated.option_notes(choices, answer, written)),
            length_s=tables.length_of(row, "duration"),
        )

    def _path(self, stem: str, file: str) -> str:
        """Return where the video is, or where the release would put it."""
        folders = (f"MLVU/video/{stem}", f"video/{stem}", stem)
        found = self.media.find((*folders, ".", "video", "videos", "mlvu"), [file])
        return found or self.media.at(
            next(filter(self.media.holds, folders), folders[0 if self.media.holds("MLVU") else 1]),
            file,
        )


def _question(row: Row) -> tuple[str, tuple[str, ...]]:
    """Read text and options; lmms-eval's table holds both in one field, "(A) .." line by line."""
    text = tables.text_of(row, "question")
    if "video_name" in row:
        if (both := annotated.options_in(text)) is not None:
            return both
        if tables.is_missing(row.get("candidates")):
            raise InputError("the question has no lines '(A) ...' and there are no candidates")
    return text, tables.list_of(row, "candidates")


def _answer(written: str, choices: tuple[str, ...], is_letter: bool) -> int | None:
    """Find the right option; `None` if it is none."""
    if is_letter and re.fullmatch(r"\(?[A-Z]\)?", written.strip()):
        index = LETTERS.index(written.strip("() "))
        return index if index < len(choices) else None
    return annotated.index_of_text(written, choices)
