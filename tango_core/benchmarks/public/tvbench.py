"""TVBench: ten tasks that single frames, texts and common knowledge do not solve.

Cores et al., "TVBench: Redesigning Video-Language Evaluation", 2024,
https://arxiv.org/abs/2410.07752: 2,525 questions in the format of MVBench. Two tasks ask about a
part of a file, which is shown here, as the authors do; lmms-eval shows the whole file. Prompt and
rules: lmms-eval 75571cfe, `lmms_eval/tasks/tvbench`. VLMEvalKit e8e78f05 has no TVBench: under its
name the question is put in the same words, and there is no harness's score.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any, ClassVar

from tango_core.benchmarks import annotated, tables
from tango_core.benchmarks.protocols.protocol import PromptTemplate, of_lmms_eval
from tango_core.benchmarks.releases import Release
from tango_core.benchmarks.scoring.multiple_choice import LETTERS
from tango_core.types import Question

TASKS = (
    *("action_antonym", "action_count", "action_localization", "action_sequence"),
    *("egocentric_sequence", "moving_direction", "object_count", "object_shuffle"),
    *("scene_transition", "unexpected_action"),
)
# Tasks that ask about a part of a file.
BOUNDED = ("action_localization", "action_sequence")
PROMPT = PromptTemplate("{question}\n{options}\nAnswer with the option letter only.")


def letter(reply: str, choices: Sequence[str]) -> str:
    """The letter that lmms-eval's task reads, or "", whatever the case: "a dog" is A.

    The first letter that stands alone, else a letter that begins the reply ("Cats" is C), else the
    only option whose text is a part of it.
    """
    upper, letters = reply.strip().upper(), LETTERS[: max(len(choices), 2)]
    for form in (r".*?\b([A-Z])\b", r"[(\[]?([A-Z])"):
        found = re.match(form, upper, re.DOTALL)
        if found and found[1] in letters:
            return found[1]
    folded = [_folded(choice) for choice in choices]
    named = [at for at, text in enumerate(folded) if text and text in _folded(reply)]
    return letters[named[0]] if len(named) == 1 else ""


def target(question: Question) -> str:
    """The letter that lmms-eval's task takes for the right one.

    An answer in digits is an index there, from 0, or from 1 if it is the number of options: of the
    options 2, 3 and 4 it takes the last one, whose index is 2, where the answer is "2". An answer
    of one letter is that letter. Of equal options the first is meant.
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
    return " ".join(text.lower().split())


def score(reply: str, question: Question) -> float | None:
    """1 if the letter that is read is the one that is taken for right."""
    if question.answer is None:
        return None
    return float(letter(reply, question.choices) == target(question))


def sample_metrics(record: annotated.Record, reply: str) -> dict[str, Any]:
    """The metric of lmms-eval's tasks."""
    return {"tvbench_acc": score(reply, record.question)}


class TVBenchBenchmark(annotated.AnnotatedBenchmark):
    """TVBench in the layout of the release."""

    name = "tvbench"
    title = "TVBench"
    layout = "json/action_antonym.json and nine others, and video/<task>/<video>"
    task_files: ClassVar = {task: f"{task}.json" for task in TASKS}
    task_folders = ("json", ".")
    answer_form = "text"
    group_columns: ClassVar = {"task": "task_type"}
    splits: ClassVar = {"test": 2525}
    protocols: ClassVar = of_lmms_eval(PROMPT, score, max_new_tokens=32)
    lmms_eval_samples = annotated.LmmsEvalSamples(
        lambda record: f"tvbench_{record.question.groups['task']}",
        sample_metrics,
        target=lambda record: target(record.question),
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
