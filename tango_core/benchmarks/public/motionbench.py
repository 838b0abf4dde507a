"""MotionBench: how people, objects and the camera move, in short videos.

Hong et al., "MotionBench: Benchmarking and Improving Fine-grained Video Motion Understanding for
Vision Language Models", CVPR 2025, https://arxiv.org/abs/2501.02955: 8,052 questions of six types,
4,018 of them with a public answer. Prompt and rules: lmms-eval 75571cfe,
`lmms_eval/tasks/motionbench`. VLMEvalKit e8e78f05 has no MotionBench: under its name the question
is put in the same words, and there is no harness's score.
"""

from __future__ import annotations

import re
from functools import partial
from pathlib import Path
from typing import Any, ClassVar

from tango_core.benchmarks import annotated, tables
from tango_core.benchmarks.protocols.harnesses import letter_score
from tango_core.benchmarks.protocols.protocol import PromptTemplate, of_lmms_eval
from tango_core.benchmarks.releases import Release
from tango_core.benchmarks.scoring.multiple_choice import LETTERS
from tango_core.errors import InputError

PROMPT = PromptTemplate(
    "{question}\n{options}\nAnswer with only the option letter (A, B, C, D, E, or F)."
)
_OPTION = re.compile(r"(?:^|\n)\s*([A-F])[.):]\s*(.*?)\s*(?=\n\s*[A-F][.):]\s|$)", re.DOTALL)
_PHRASES = ("THE BEST ANSWER IS", "THE CORRECT ANSWER IS", "THE ANSWER IS", "BEST ANSWER:")
_META = "video_info.meta.jsonl"


def letter(reply: str) -> str:
    """The letter that lmms-eval's task reads behind the reasoning, or "", whatever the case.

    The first from A to F that stands alone, else one before a full stop, a bracket or a colon, else
    the first of any word: "Nothing else" is E.
    """
    text = reply.split("</think>")[-1].strip().upper()
    for phrase in (*_PHRASES, "ANSWER:"):
        text = text.replace(phrase, "")
    every = (re.search(form, text) for form in (r"\b([A-F])\b", r"([A-F])[.):]", r"([A-F])"))
    return next((found[1] for found in every if found), "")


def sample_metrics(record: annotated.Record, reply: str) -> dict[str, Any]:
    """The metrics of lmms-eval's task."""
    read = letter(reply)
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

    `"dev"` and the recipe's default name `"test"` are the questions with a public answer; `"all"`
    are all, whose replies are recorded and not scored.
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
    # That of other tasks for a failed question names a letter by these rules.
    protocols: ClassVar = of_lmms_eval(
        PROMPT, partial(letter_score, letter), max_new_tokens=64, failed_reply=""
    )
    lmms_eval_samples = annotated.LmmsEvalSamples("motionbench_full", sample_metrics)
    releases = (
        Release(
            repository="zai-org/MotionBench",
            licence="research only",
            annotations=(f"*{_META}",),
            videos=("MotionBench/*.mp4",),
        ),
    )

    def _rows(self, path: Path) -> list[tables.Row]:
        named = ("key", "video_path", "question_type", "video_type")
        rows = tables.of_videos(path, super()._rows(path), *named)
        known = [{**row, "answer": str(row.get("answer") or "").strip().upper()} for row in rows]
        known = [{**row, "answer": ""} if row["answer"] == "NA" else row for row in known]
        if self.split in self.hidden_splits:
            return [{**row, "answer": ""} for row in known]
        return [row for row in known if row["answer"]]

    def _question(self, row: tables.Row) -> tuple[str, tuple[str, ...]]:
        """Split the question from its options, lines "A. ..", and collapse white space in both."""
        text = tables.text_of(row, "question").strip()
        found = list(_OPTION.finditer(text))
        choices = tuple(_collapsed(one[2]) for one in found)
        if "".join(one[1] for one in found) != LETTERS[: len(found)] or not all(choices):
            raise InputError("the options are not lines 'A. ..', 'B. ..' and so on")
        if not found:
            raise InputError("the question has no lines 'A. ..' with options")
        return _collapsed(text[: found[0].start()]) or _collapsed(text), choices


def _collapsed(text: str) -> str:
    return " ".join(text.split())
