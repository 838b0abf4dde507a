"""TempCompass: 410 short videos, five dimensions of time, four forms of question.

Liu et al., "TempCompass: Do Video LLMs Really Understand Videos?", 2024,
https://arxiv.org/abs/2403.00476. Data: `lmms-lab/TempCompass` on the Hugging Face hub, and the
folder `questions` of llyx97/TempCompass. Captioning needs a judge: its replies are recorded, not
scored.

The rules without a judge are those of the official scripts `eval_multi_choice.py`, `eval_yes_no.py`
and `eval_caption_matching.py`, as VLMEvalKit (`vlmeval/dataset/utils/tempcompass.py`) and lmms-eval
(`lmms_eval/tasks/tempcompass/utils.py`) copied them. Replies are not stripped there: "A" with a
line break behind it matches no rule. Where no rule matches lmms-eval asks a judge, and counts the
reply as wrong if none answers, which is the score here.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, ClassVar, NamedTuple

from tango_core.benchmarks import annotated, tables
from tango_core.benchmarks.base import CrossTable
from tango_core.benchmarks.protocols import protocol
from tango_core.benchmarks.protocols.protocol import in_versions
from tango_core.benchmarks.releases import Release
from tango_core.benchmarks.scoring.multiple_choice import answer_part, mentioned
from tango_core.errors import InputError
from tango_core.types import Prompt, Question

# Forms of question, in the order of VLMEvalKit's concatenated table.
TASKS = ("multi-choice", "caption_matching", "captioning", "yes_no")
MULTI_CHOICE, CAPTION_MATCHING, CAPTIONING, YES_NO = TASKS
DIMENSIONS = ("action", "direction", "speed", "order", "attribute_change")
YES_OR_NO = ("yes", "no")

# Form -> end of the prompt; the second are those that lmms-eval uses for Perception LM.
_BEST, _YES_OR_NO = "\nPlease directly give the best option:", "\nPlease answer yes or no:"
_ENDINGS = dict(zip(TASKS, (_BEST, _BEST, "", _YES_OR_NO), strict=True))
_PLM_BEST, _PLM_YES_OR_NO = "\nOnly give the best option.", "\nOnly answer yes or no."
_PLM_ENDINGS = dict(zip(TASKS, (_PLM_BEST, _PLM_BEST, "", _PLM_YES_OR_NO), strict=True))
# VLMEvalKit's data set of each form.
_MCQ = "TempCompass_MCQ"
_DATASETS = dict(
    zip(TASKS, (_MCQ, _MCQ, "TempCompass_Captioning", "TempCompass_YorN"), strict=True)
)

# Form -> an option's line: "A. dancing", and in two rows of the release "C.Both"; one has a space
# in front of the letter. "Option 1: ..", "Sentence A: ..", "Caption B: ..".
_LINES = {
    MULTI_CHOICE: re.compile(r"\s*([A-Z])[.)]\s*(.*)", re.DOTALL),
    CAPTION_MATCHING: re.compile(r"\s*(?:Option|Sentence|Caption) ([A-Z0-9]):\s*(.*)", re.DOTALL),
}

_NAME = re.compile(r"\b(?:option|sentence|caption)\s+([a-z0-9])\b", re.IGNORECASE)
# "A", "(1)", "2.", and "B) A man runs".
_LABEL = re.compile(r"[\W_]*([A-Z0-9])(?:[\W_]*|\s*[).:]\s.*)", re.DOTALL)
# The word alone, or before punctuation, a reason or a subject; "no idea" is no answer.
_OPENING = re.compile(
    r"[\W_]*(yes|no)\b(?=[\W_]*$|\s*[,.;:!\n*\"')\]\u2013\u2014]|\s+[-(]"
    r"|\s+(?:it|he|she|they|we|you|the|this|that|there|because|since|as|based)\b)",
    re.IGNORECASE,
)
_BOTH = re.compile(
    r"[\W_]*(yes|no)[\s,]+(?:(?:and|or)\b|(?!\1)(?:yes|no)[\W_]*$)"
    r"|[\W_]*(yes|no)\.\s+(?!\2)(?:yes|no)[\W_]*$",
    re.IGNORECASE,
)
_STATED = re.compile(r"\banswer\s*(?:is\s*:?|:)[\s\"'*]*(yes|no)\b", re.IGNORECASE)


class Option(NamedTuple):
    """One line of options.

    Attributes:
        line: The whole line, e.g. `"Option 1: A man runs."`.
        label: Its letter or number: `"A"`, `"1"`.
        text: The text of the option, e.g. `"A man runs."`.
    """

    line: str
    label: str
    text: str


def options_in(text: str, task: str) -> tuple[Option, ...]:
    """Read the options in the text of a question of `multi-choice` or `caption_matching`.

    Raises:
        ValueError: If a line after the first is no option, or there are fewer than two.
    """
    found = []
    for line in filter(str.strip, text.split("\n")[1:]):
        match = _LINES[task].fullmatch(line)
        if match is None:
            raise InputError(f"line {line!r} of the question is no option")
        found.append(Option(line, match[1], match[2]))
    if len(found) < 2:
        raise InputError("the question holds fewer than two options")
    return tuple(found)


def render(question: Question, endings: Mapping[str, str] = _ENDINGS) -> Prompt:
    """The release's question, options included, and the ending of its form."""
    return Prompt("", question.text + endings[question.groups["task"]])


def read_choice(reply: str, question: Question) -> int | None:
    """Read the option a reply names; `None` if it names none, or several, or contradicts itself.

    Captioning has no options: its replies are recorded, not read.
    """
    task = question.groups["task"]
    if task == MULTI_CHOICE:
        return protocol.read_choice(reply, question)
    if task == YES_NO:
        return _yes_or_no(answer_part(reply))
    return _caption(answer_part(reply), question) if task == CAPTION_MATCHING else None


def _yes_or_no(reply: str) -> int | None:
    """Read yes or no at the start of a reply or after "answer"; "Yes and no" is neither."""
    opening = _OPENING.match(reply)
    named = {word.lower() for word in _STATED.findall(reply)}
    if opening:
        named.add(opening[1].lower())
    return None if len(named) != 1 or _BOTH.match(reply) else YES_OR_NO.index(named.pop())


def _caption(reply: str, question: Question) -> int | None:
    """Read the sentence that a reply repeats, or names by its label; both must agree."""
    labels = [option.label for option in options_in(question.text, CAPTION_MATCHING)]
    named = {label.upper() for label in _NAME.findall(reply)}
    if not named and (alone := _LABEL.fullmatch(reply)):
        named = {alone[1]}
    if not named <= set(labels):
        return None
    found = {*mentioned(reply, question.choices), *map(labels.index, named)}
    return found.pop() if len(found) == 1 else None


def rated(reply: str, question: Question) -> float | None:
    """1 or 0 by the rule of the question's form; `None` where only the judge could decide.

    Args:
        reply: The model's text.
        question: With the group `task`; there is no rule for `captioning`.
    """
    task = question.groups["task"]
    if question.answer is None or task == CAPTIONING:
        return None
    if task == YES_NO:
        named = next((word for word in YES_OR_NO if reply.lower().startswith(word)), None)
        return None if named is None else float(named == question.choices[question.answer])
    lines = [option.line for option in options_in(question.text, task)]
    answer = lines[question.answer]
    if task == CAPTION_MATCHING:
        return _matching(reply, lines, answer)
    # The whole line, a lone letter, or a letter before "." or ")", whose text does not count.
    if reply == answer:
        return 1.0
    is_letter = re.fullmatch(r"[A-D]", reply) or re.match(r"[A-D][.)]", reply)
    return float(reply[0] == answer[0]) if is_letter else None


def _matching(reply: str, lines: list[str], answer: str) -> float | None:
    """Compare with the line, its sentence and its label; of several matches the last one counts."""
    parts = [line.split(": ") for line in lines]
    behind = reply.split(") ")[1] if ") " in reply else None
    named = next((line for line in lines if line == reply), None)
    for sentence in (part[1] for part in parts if len(part) > 1):
        if sentence in (reply, behind):
            named = sentence
    names = [part[0] for part in parts]
    for name in (*names, *(re.sub("Sentence |Option |Caption ", "", name) for name in names)):
        if name in (reply, reply.replace(".", "")):
            named = name
    if named is None:
        return None
    name = answer.split(": ")[0]
    right = {answer, answer.split(":")[0], *answer.split(": ")[1:2], *name.split()[1:2]}
    return float(named in right)


def score(reply: str, question: Question) -> float | None:
    """Score without a judge: a reply that matches no rule is wrong.

    Captions, which only the judge rates, have no score.
    """
    return None if question.answer is None else rated(reply, question) or 0.0


def sample_metrics(record: annotated.Record, reply: str) -> dict[str, Any]:
    """lmms-eval's metrics for all questions and for the question's dimension, which are equal."""
    question, written = record.question, annotated.written_answer(record)
    rule = rated(reply, question)
    rated_as: dict[str, Any] = {
        "video_id": record.video_id,
        "question": question.text,
        "gt-answer": written,
        "video-llm-prediction": reply,
        "match_success": rule is not None,
        "rating": int(rule or 0),
        "dim": question.groups["dimension"],
    }
    if question.groups["task"] == CAPTIONING:
        del rated_as["match_success"]
        rated_as["gt-answer"] = str(record.row.get("mc_answer") or written)
        # Its value where the judge fails.
        rated_as |= {"chatgpt-reasoning": None, "chatgpt-answer": None, "rating": -1}
    return {"avg_accuracy": rated_as, f"{question.groups['dimension']}_accuracy": rated_as}


def columns(record: annotated.Record) -> dict[str, Any]:
    """Columns of VLMEvalKit's concatenated table; those of other forms are empty.

    VLMEvalKit splits the data set `TempCompass` into three again before it rates them:
    `TempCompass_MCQ` (multi-choice, then caption matching), `_Captioning` and `_YorN`.
    """
    question, task = record.question, record.question.groups["task"]
    stem, *options = question.text.split("\n")
    listed = task in _LINES
    caption = record.row if task == CAPTIONING else {}
    return {
        "task_type": task,
        "prefix": "./videos",
        "suffix": ".mp4",
        "video": record.video_id,
        "question": stem if listed else question.text,
        "answer": annotated.written_answer(record),
        "dim": question.groups["dimension"],
        "candidates": str(options) if listed else "",
        "mc_question": str(caption.get("mc_question") or ""),
        "mc_answer": str(caption.get("mc_answer") or ""),
        "SUB_DATASET": _DATASETS[task],
        "original_index": record.index if listed else record.number,
        "index": record.index,
    }


# A caption and a repeated sentence are longer than a letter.
_listed = partial(in_versions, score=score, read_choice=read_choice, max_new_tokens=128)
_NAMES = ("{task}/test-00000-of-00001.parquet", "{task}.json", "questions/{task}.json")
_TSVS = tuple(dict.fromkeys(f"{name}.tsv" for name in _DATASETS.values()))
_RELEASE = Release(
    repository="lmms-lab/TempCompass",
    licence="see the page of the data set; the videos are of ShutterStock, under its terms",
    annotations=tuple(f"{task}/test-*.parquet" for task in TASKS),
    videos=("tempcompass_videos.zip",),
)


class TempCompassBenchmark(annotated.AnnotatedBenchmark):
    """TempCompass from the hub's tables, the authors' JSON files, or VLMEvalKit's three TSVs.

    A form whose file is absent is not asked; at least one must exist.
    """

    name = "tempcompass"
    title = "TempCompass"
    layout = (
        "multi-choice/test-00000-of-00001.parquet or questions/multi-choice.json, the same of "
        "caption_matching, captioning and yes_no, and videos/<video_id>.mp4"
    )
    video_columns = ("video_id",)
    splits: ClassVar = {"test": 7540}
    protocols: ClassVar = {
        **_listed("vlmevalkit", render),
        **_listed("lmms_eval", render),
        **_listed("lmms_eval_plm", partial(render, endings=_PLM_ENDINGS)),  # for Perception LM
    }
    cross_table = CrossTable("dimension", ("task",))
    vlmevalkit_table = annotated.VLMEvalKitTable("TempCompass", columns)
    lmms_eval_samples = annotated.LmmsEvalSamples(
        lambda record: f"tempcompass_{record.question.groups['task'].replace('-', '_')}",
        sample_metrics,
        target=annotated.written_answer,
        doc_id=lambda record: record.number,
        key_in=annotated.fields_of_metric("avg_accuracy", "video_id", "dim", "question"),
    )
    releases = (_RELEASE, replace(_RELEASE, repository="lmms-eval/TempCompass"))

    def _tables(self) -> list[annotated.Table]:
        found = {task: self._find([name.format(task=task) for name in _NAMES]) for task in TASKS}
        forms = [
            annotated.Table(path, [{**row, "task_type": task} for row in self._rows(path)])
            for task, path in found.items()
            if path is not None
        ]
        return forms or self._of_vlmevalkit()

    def _rows_of(self, content: Any) -> list[tables.Row]:
        if isinstance(content, list):
            return content
        return [
            {"video_id": video, "dim": dimension, **question}
            for video, dimensions in content.items()
            for dimension, questions in dimensions.items()
            for question in questions
        ]

    def _of_vlmevalkit(self) -> list[annotated.Table]:
        """The rows of VLMEvalKit's tables by form; at least one table must exist."""
        first = self._find_annotations(_TSVS)
        rows: dict[str, list[tables.Row]] = {task: [] for task in TASKS}
        for path in filter(Path.is_file, (self.root / name for name in _TSVS)):
            for row in tables.read_rows(path):
                lines = [tables.text_of(row, "question")]
                if not tables.is_missing(row.get("candidates")):
                    lines += tables.list_of(row, "candidates")
                task = tables.text_of(row, "task_type")
                if task not in TASKS:
                    raise InputError(
                        f"{path}: unknown task_type {task!r}; known are {', '.join(TASKS)}"
                    )
                own = {"video_id": row.get("video"), "question": "\n".join(lines)}
                rows[task].append({**row, **own})
        return [
            annotated.Table(first, own) for task, own in rows.items() if own or task == TASKS[0]
        ]

    def _file(self, row: tables.Row) -> str:
        return super()._file(row).strip()

    def _id(self, row: tables.Row, video: str, number: int) -> str:
        task, dimension = self._groups(row).values()
        return self._numbered(f"{task}/{video}/{dimension}/")

    def _groups(self, row: tables.Row) -> dict[str, str]:
        dimension = tables.text_of(row, "dim").strip()
        if dimension not in DIMENSIONS:
            raise InputError(f"unknown dim {dimension!r}; known are {', '.join(DIMENSIONS)}")
        return {"task": tables.text_of(row, "task_type"), "dimension": dimension}

    def _asked(self, row: tables.Row, question_id: str) -> Question:
        text, written = (tables.text_of(row, name) for name in ("question", "answer"))
        groups, written = self._groups(row), written.strip()
        lines: tuple[str, ...] = ()
        choices: tuple[str, ...] = ()
        if groups["task"] == YES_NO:
            lines, choices, written = YES_OR_NO, YES_OR_NO, written.lower()
            if written not in lines:
                raise InputError(f"answer {written!r} must be yes or no")
        elif groups["task"] != CAPTIONING:
            options = options_in(text, groups["task"])
            lines = tuple(option.line.strip() for option in options)
            choices = tuple(option.text for option in options)
        answer = lines.index(written) if written in lines else None
        return Question(question_id, text, choices, answer, groups)
