"""LVBench, MotionBench, PerceptionTest and TVBench, whose lmms-eval tasks look for one letter.

LVBench: Wang et al., "LVBench: An Extreme Long Video Understanding Benchmark", 2024,
https://arxiv.org/abs/2406.08035. 103 videos of more than an hour on average, 1,549 questions of six
types. Data: `zai-org/LVBench` on the Hugging Face hub, which holds no videos, and
`lmms-eval/LVBench` with them.

MotionBench: Hong et al., "MotionBench: Benchmarking and Improving Fine-grained Video Motion
Understanding for Vision Language Models", CVPR 2025, https://arxiv.org/abs/2501.02955. How people,
objects and the camera move: 8,052 questions of six types, 4,018 of them with a public answer.

PerceptionTest: Patraucean et al., "Perception Test: A Diagnostic Benchmark for Multimodal Video
Models", NeurIPS 2023, https://arxiv.org/abs/2305.13786. Memory, abstraction, physics and semantics
in 23 seconds: 19,140 questions with three options about 5,900 videos of the validation split.

TVBench: Cores et al., "TVBench: Redesigning Video-Language Evaluation", 2024,
https://arxiv.org/abs/2410.07752. Ten tasks that single frames, texts and common knowledge do not
solve: 2,525 questions in the format of MVBench. Two tasks ask about a part of a file, which is
shown here, as the authors do; lmms-eval shows the whole file.

Prompts and rules: lmms-eval 75571cfe, `lmms_eval/tasks/{lvbench,motionbench,perceptiontest/val,
tvbench}`. VLMEvalKit e8e78f05 has none of the four: its protocol uses the same prompts here, and no
score of a harness is computed.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from functools import partial
from pathlib import PurePosixPath
from typing import Any, ClassVar

from tango_core.benchmarks import annotated, tables
from tango_core.benchmarks.protocols import protocol
from tango_core.benchmarks.protocols.harnesses import letter_score, ranked_score
from tango_core.benchmarks.protocols.protocol import PromptTemplate, of_lmms_eval
from tango_core.benchmarks.releases import Release
from tango_core.benchmarks.scoring.multiple_choice import BRACKETED, LETTERS
from tango_core.errors import InputError
from tango_core.types import Question

_META = "video_info.meta.jsonl"


class _OptionallyGrouped(annotated.AnnotatedBenchmark):
    """A benchmark whose rows may have no value, or a list of values, in a group column."""

    def _groups(self, row: tables.Row) -> dict[str, str]:
        found = {group: row.get(column) for group, column in self.group_columns.items()}
        return {
            group: ", ".join(map(str, own)) if isinstance(own, list) else str(own)
            for group, own in found.items()
            if not tables.is_missing(own) and own != []
        }


# lmms-eval's prompt has no full stop at the end.
LVBENCH = PromptTemplate(
    "{question}\n{options}\nAnswer the question with the option letter", option=BRACKETED
)
_LVBENCH_LICENCE = "CC-BY-NC-SA 4.0, research only"


class LVBenchBenchmark(_OptionallyGrouped):
    """LVBench from the authors' `video_info.meta.jsonl` or the table that lmms-eval reads."""

    name = "lvbench"
    title = "LVBench"
    layout = f"{_META} or data/train-*.parquet, and videos/<key>.mp4"
    annotations = (
        *("data/train-*.parquet", "train-*.parquet", "*/train-*.parquet"),
        *(_META, f"data/{_META}", "lvbench.jsonl", "lvbench.json"),
    )
    folders = (".", "videos", "all_videos")
    video_columns = ("video_path", "key", "video", "video_id")
    id_column = "uid"
    group_columns: ClassVar = {"type": "question_type", "category": "type"}
    several_valued: ClassVar = ("type",)
    splits: ClassVar = {"test": 1549, "train": 1549}
    protocols: ClassVar = of_lmms_eval(LVBENCH, ranked_score)
    lmms_eval_samples = annotated.LmmsEvalSamples(
        "lvbench",
        lambda record, reply: {"lvbench_score": bool(ranked_score(reply, record.question))},
    )
    releases = (
        Release(
            repository="lmms-eval/LVBench",
            licence=_LVBENCH_LICENCE,
        ),
        Release(
            repository="zai-org/LVBench",
            licence=_LVBENCH_LICENCE,
            annotations=(_META,),
            videos=(),
            notes=(
                "the videos are on YouTube, by the keys in the table; some are gone: put what you "
                "have into videos/<key>.mp4",
            ),
        ),
    )

    def _rows_of(self, content: Any) -> list[tables.Row]:
        return tables.of_videos(content, "key", "type")

    def _file(self, row: tables.Row) -> str:
        return PurePosixPath(super()._file(row)).name


MOTIONBENCH = PromptTemplate(
    "{question}\n{options}\nAnswer with only the option letter (A, B, C, D, E, or F)."
)
_PHRASES = ("THE BEST ANSWER IS", "THE CORRECT ANSWER IS", "THE ANSWER IS", "BEST ANSWER:")


def motionbench_letter(reply: str) -> str:
    """The upper-case letter that MotionBench's task reads after `</think>`, or "".

    Case is ignored. It is the first letter from A to F that stands alone, else the first one before
    a full stop, a bracket or a colon, else the first one in any word: "Nothing else" gives E.
    """
    text = reply.split("</think>")[-1].strip().upper()
    for phrase in (*_PHRASES, "ANSWER:"):
        text = text.replace(phrase, "")
    every = (re.search(form, text) for form in (r"\b([A-F])\b", r"([A-F])[.):]", r"([A-F])"))
    return next((found[1] for found in every if found), "")


def motionbench_metrics(record: annotated.Record, reply: str) -> dict[str, Any]:
    """The metrics of MotionBench's task."""
    read = motionbench_letter(reply)
    right, answered = float(read == annotated.right_letter(record)), float(bool(read))
    kind = record.question.groups["type"]
    counted = {"question_type": kind, "score": right, "answered": answered, "total": 1.0}
    return {
        "motionbench_acc": {"score": right, "total": 1.0},
        "motionbench_answered_rate": {"score": answered, "total": 1.0},
        "motionbench_tracking": counted,
    }


class MotionBenchBenchmark(annotated.AnnotatedBenchmark):
    """MotionBench from the authors' `video_info.meta.jsonl`.

    The splits `"dev"` and `"test"` (the recipe's default) are the questions with a public answer.
    `"all"` are all questions; their replies are recorded and not scored.
    """

    name = "motionbench"
    title = "MotionBench"
    layout = f"{_META}, and the videos in public-dataset and self-collected"
    annotations = (_META, f"MotionBench/{_META}", f"data/{_META}")
    hidden_splits = ("all",)
    folders = tuple(
        f"{parent}{name}"
        for parent in ("", "MotionBench/")
        for name in ("public-dataset", "self-collected", "videos", ".")
    )
    video_columns = ("video_path",)
    id_column = "uid"
    group_columns: ClassVar = {"type": "question_type", "video_type": "video_type"}
    splits: ClassVar = {"test": 4018, "dev": 4018, "all": 8052}
    # Empty, because `motionbench_letter` would read a letter in the default text (`NOT_LOADED`).
    protocols: ClassVar = of_lmms_eval(
        MOTIONBENCH, partial(letter_score, motionbench_letter), max_new_tokens=64, failed_reply=""
    )
    lmms_eval_samples = annotated.LmmsEvalSamples("motionbench_full", motionbench_metrics)
    releases = (
        Release(
            repository="zai-org/MotionBench",
            licence="research only",
            annotations=(f"*{_META}",),
            videos=("MotionBench/*.mp4",),
        ),
    )

    def _rows_of(self, content: Any) -> list[tables.Row]:
        named = ("key", "video_path", "question_type", "video_type")
        rows = tables.of_videos(content, *named)
        if self.split in self.hidden_splits:
            return [{**row, "answer": ""} for row in rows]
        known = [{**row, "answer": str(row.get("answer") or "").strip().upper()} for row in rows]
        return [row for row in known if row["answer"] not in ("", "NA")]

    def _question(self, row: tables.Row) -> tuple[str, tuple[str, ...]]:
        """Split the question from its options, lines "A. ..", and collapse white space in both."""
        text = tables.text_of(row, "question").strip()
        stem, *options = tables.split_options(text, r"^\s*{}[.):]\s")
        choices = tuple(map(annotated.plain, options))
        if not choices or not all(choices):
            raise InputError("the question has no lines 'A. ..', 'B. ..' and so on with options")
        return annotated.plain(stem) or annotated.plain(text), choices


PERCEPTIONTEST = PromptTemplate(f"{{question}}\n{{options}}\n{protocol.LETTER_PLEASE}")


def perceptiontest_letter(reply: str) -> str:
    """The first upper-case letter from A to D that stands alone, or ""; "A dog" gives A."""
    found = re.search(r"\b([A-D])\b", reply)
    return found[1] if found else ""


def perceptiontest_metrics(record: annotated.Record, reply: str) -> dict[str, Any]:
    """The metric of PerceptionTest's task."""
    index, answer = LETTERS.find(perceptiontest_letter(reply) or "?"), record.row["answer_id"]
    return {
        "accuracy": {
            "video_name": record.video_id,
            "question": record.question.text,
            "pred_id": index,
            "answer_id": answer,
            "correct": int(index == int(answer)),
        }
    }


class PerceptionTestBenchmark(_OptionallyGrouped):
    """PerceptionTest from the hub's table or the authors' `all_valid.json`.

    `"validation"` and the recipe's default name `"test"` are the same split: the authors' test set
    has no public answers and is not read.
    """

    name = "perceptiontest"
    title = "PerceptionTest"
    layout = "mc_question_val/validation-*.parquet or all_valid.json, and videos/<video_name>.mp4"
    annotations = ("mc_question_val/validation-*.parquet", "all_valid.json")
    folders = ("videos",)
    video_columns = ("video_name",)
    answer_column = "answer_id"
    answer_form = "index"
    group_columns: ClassVar = {name: name for name in ("area", "reasoning", "tag")}
    several_valued: ClassVar = ("tag",)
    splits: ClassVar = {"test": 19140, "validation": 19140}
    protocols: ClassVar = of_lmms_eval(
        PERCEPTIONTEST,
        partial(letter_score, perceptiontest_letter),
        max_new_tokens=protocol.PLAIN.max_new_tokens,
    )
    lmms_eval_samples = annotated.LmmsEvalSamples(
        "perceptiontest_val_mc",
        perceptiontest_metrics,
        target=lambda record: str(record.row["answer_id"]),
        key_in=annotated.fields_of_metric("accuracy", "video_name", "question"),
    )
    releases = tuple(
        Release(
            repository=repository,
            licence="CC-BY 4.0",
            annotations=("mc_question_val/validation-*.parquet",),
            videos=("*.zip",),
        )
        for repository in ("lmms-lab/PerceptionTest_Val", "lmms-eval/PerceptionTest_Val")
    )

    def _rows_of(self, content: Any) -> list[tables.Row]:
        if isinstance(content, list):
            return content
        return [
            {"video_name": video, "question_id": asked["id"], **asked}
            for video, own in content.items()
            for asked in own["mc_question"]
        ]

    def _id(self, row: tables.Row, video: str, number: int) -> str:
        return f"{video}-{tables.text_of(row, 'question_id')}"


# Tasks that ask about a part of a file, and the others.
BOUNDED = ("action_localization", "action_sequence")
TASKS = (
    *BOUNDED,
    *("action_antonym", "action_count", "egocentric_sequence", "moving_direction"),
    *("object_count", "object_shuffle", "scene_transition", "unexpected_action"),
)
TVBENCH = PromptTemplate("{question}\n{options}\nAnswer with the option letter only.")


def tvbench_letter(reply: str, choices: Sequence[str]) -> str:
    """The upper-case letter that TVBench's task reads, or "".

    Case is ignored. It is the first letter that stands alone ("a dog" gives A), else the first
    letter of the reply ("Cats" gives C), else the only option whose text occurs in the reply.
    """
    upper, letters = reply.strip().upper(), LETTERS[: max(len(choices), 2)]
    for form in (r".*?\b([A-Z])\b", r"[(\[]?([A-Z])"):
        found = re.match(form, upper, re.DOTALL)
        if found and found[1] in letters:
            return found[1]
    folded = [_folded(choice) for choice in choices]
    named = [at for at, text in enumerate(folded) if text and text in _folded(reply)]
    return letters[named[0]] if len(named) == 1 else ""


def tvbench_target(question: Question) -> str:
    """The letter that TVBench's task counts as correct, or "" without an answer.

    The task looks at the text of the correct option. With N options, a number below N is read as an
    index from 0, and the number N as the last option: for the options 2, 3 and 4 with the answer
    "2" the task expects C. A single letter is read as that letter. Any other text: the first option
    with this text.
    """
    if question.answer is None:
        return ""
    text, choices = question.choices[question.answer].strip(), question.choices
    if len(text) == 1 and text.isalpha():
        return text.upper()
    if text.isdigit() and int(text) <= len(choices):
        return LETTERS[int(text) - (int(text) == len(choices))]
    return LETTERS[[_folded(choice) for choice in choices].index(_folded(text))]


def _folded(text: str) -> str:
    return annotated.plain(text.lower())


def score_tvbench(reply: str, question: Question) -> float | None:
    """1.0 if `tvbench_letter` equals `tvbench_target`, else 0.0; `None` without an answer."""
    if question.answer is None:
        return None
    return float(tvbench_letter(reply, question.choices) == tvbench_target(question))


class TVBenchBenchmark(annotated.AnnotatedBenchmark):
    """TVBench in the layout of the release."""

    name = "tvbench"
    title = "TVBench"
    layout = "json/action_antonym.json and nine others, and video/<task>/<video>"
    task_files: ClassVar = {task: f"{task}.json" for task in sorted(TASKS)}
    task_folders = ("json", ".")
    answer_form = "text"
    group_columns: ClassVar = {"task": "task_type"}
    splits: ClassVar = {"test": 2525}
    protocols: ClassVar = of_lmms_eval(TVBENCH, score_tvbench, max_new_tokens=32)
    lmms_eval_samples = annotated.LmmsEvalSamples(
        lambda record: f"tvbench_{record.question.groups['task']}",
        lambda record, reply: {"tvbench_acc": score_tvbench(reply, record.question)},
        target=lambda record: tvbench_target(record.question),
        doc_id=lambda record: record.number,
    )
    releases = (
        Release(
            repository="FunAILab/TVBench",
            licence="CC-BY 4.0 for the questions; the videos keep the licences of their data sets",
            annotations=("json/*.json",),
            videos=("video/*",),
            into=None,
            notes=("videos of data sets that forbid copies have to be added to video/<task>",),
        ),
    )

    def _id(self, row: tables.Row, video: str, number: int) -> str:
        return f"{row['task_type']}-{number}"

    def _video(self, row: tables.Row) -> str:
        return f"{row['task_type']}/{super()._video(row)}"

    def _folders(self, row: tables.Row) -> Sequence[str]:
        task = row["task_type"]
        return (f"video/{task}", f"videos/{task}", str(task))

    def _clip(self, row: tables.Row) -> annotated.Clip:
        return tables.bounds_of(row) if row["task_type"] in BOUNDED else None

    def _question(self, row: tables.Row) -> tuple[str, tuple[str, ...]]:
        text, choices = super()._question(row)
        return text.strip(), choices
