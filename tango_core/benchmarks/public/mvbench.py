"""MVBench: 20 temporal tasks of 200 questions each, on clips from eleven other datasets.

Li et al., "MVBench: A Comprehensive Multi-modal Video Understanding Benchmark", CVPR 2024,
https://arxiv.org/abs/2311.17005. Data: `OpenGVLab/MVBench` on the Hugging Face hub, in two layouts:
branch `main` holds the source videos, and five tasks ask about a part of one; branch `video` holds
clips that are cut already. Prompts and rules: VLMEvalKit, `vlmeval/dataset/mvbench.py`; lmms-eval,
`lmms_eval/tasks/mvbench`.

Bounds are applied when a clip is decoded. Nothing is cut to a file, so two questions about two
parts of one file cannot get each other's clip, as they can where the cut file is named after its
source alone.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, ClassVar

from tango_core.benchmarks import annotated, tables
from tango_core.benchmarks.base import PaperColumn
from tango_core.benchmarks.protocols import harnesses, protocol
from tango_core.benchmarks.releases import Release
from tango_core.benchmarks.scoring.multiple_choice import BRACKETED, letter_of
from tango_core.errors import InputError
from tango_core.types import Prompt, Question


@dataclass(frozen=True)
class Task:
    """One task of MVBench.

    Attributes:
        name: As the paper and VLMEvalKit write it.
        source: Folder of its videos below `video/` on the branch `main`.
        cut: Folder of its videos on the branch `video`, where clips are cut already.
        bounded: Whether its questions ask about a part of a file of the branch `main`.
        frames: Whether a video of the branch `main` is a folder of images, 3 per second.
    """

    name: str
    source: str
    cut: str
    bounded: bool = False
    frames: bool = False

    @property
    def stem(self) -> str:
        """Name of its JSON file."""
        return self.name.lower().replace(" ", "_").replace("-", "_")


_CHARADES = ("star/Charades_v1_480", "star/Charades_segment", True)
_CLEVRER = ("clevrer/video_validation",) * 2
_PERCEPTION = ("perception/videos",) * 2
WITHHELD_TASK = "Fine-grained Pose"
WITHHELD = (
    "NTU RGB+D clips are not part of the public release for licence reasons; "
    "request them from https://rose1.ntu.edu.sg/dataset/actionRecognition"
)
ALL_TASKS = (
    Task("Action Sequence", *_CHARADES),
    Task("Action Prediction", *_CHARADES),
    Task("Action Antonym", "ssv2_video", "ssv2_video_mp4"),
    Task("Fine-grained Action", "Moments_in_Time_Raw/videos", "Moments_in_Time_Raw/videos"),
    Task("Unexpected Action", "FunQA_test/test", "FunQA_test/test"),
    Task("Object Existence", *_CLEVRER),
    Task("Object Interaction", *_CHARADES),
    Task("Object Shuffle", *_PERCEPTION),
    Task("Moving Direction", *_CLEVRER),
    Task("Action Localization", "sta/sta_video", "sta/sta_video_segment", bounded=True),
    Task("Scene Transition", "scene_qa/video", "scene_qa/video"),
    Task("Action Count", *_PERCEPTION),
    Task("Moving Count", *_CLEVRER),
    Task("Moving Attribute", *_CLEVRER),
    Task("State Change", *_PERCEPTION),
    Task(WITHHELD_TASK, "nturgbd", "nturgbd_convert"),
    Task("Character Order", *_PERCEPTION),
    Task("Egocentric Navigation", "vlnqa", "vlnqa"),
    Task("Episodic Reasoning", "tvqa/frames_fps3_hq", "tvqa/video_fps3_hq_segment", True, True),
    Task("Counterfactual Inference", *_CLEVRER),
)
# By name and by the stem of the JSON file: releases write either.
TASK_OF = {key: task for task in ALL_TASKS for key in (task.name, task.stem)}

# It ends with the beginning of a reply, which most wrappers of models put into the user's turn.
VLMEVALKIT = protocol.PromptTemplate(
    "Question: {question}\nOptions:\n{options}\nOnly give the best option.Best option:(",
    before="Carefully watch the video and pay attention to the cause and sequence of events, the "
    "detail and movement of objects, and the action and pose of persons. Based on your "
    "observations, select the best option that accurately addresses the question.\n",
    option=BRACKETED,
    strip=True,
)
# Without a space after the colon.
LMMS_EVAL = protocol.PromptTemplate(
    "Question:{question}\nOption:\n{options}\nOnly give the best option.\n", option=BRACKETED
)


def without_beginning(prompt: Prompt) -> Prompt:
    """Drop the beginning of a reply from a prompt, as VLMEvalKit's wrapper of InternVL does."""
    return replace(prompt, after=prompt.after.replace("Best option:(", ""))


# Not a look-behind: the original says "(?!<=", which never fails on a full stop.
_FULL_STOP = re.compile(r"(?!<=\d)(\.)(?!\d)")
_THOUSANDS = re.compile(r"(\d)(\,)(\d)")
_PUNCTUATION = (*';/[]"{}()=+\\_-><@`,?!',)
# The original passes `re.UNICODE` where `re.sub` expects a count.
_MAX_FULL_STOPS = int(re.UNICODE)


def score_vlmevalkit(reply: str, question: Question, stated: bool = True) -> float:
    """1 if VLMEvalKit's rating would count the reply as right, which it does too often.

    The first word is right if it is a part of "(b)": "", "(" and ")" are, for every right option.
    The rating counts every score that is not 0, so that its failures, which are scored -1, are
    right, too. Without `stated`, as before change 1552, "The correct answer is B" counts only where
    B is among the last four words.
    """
    if protocol.FAILED_REPLY in reply:
        return 1.0
    # An answer that is none of the options is option -1 there, the character before "A".
    letter = "@" if question.answer is None else letter_of(question.answer)
    right = f"({letter.lower()})"
    first = reply.lower().strip().split(" ")[0]
    if first.replace(".", "") in right or right in first:
        return 1.0
    return float(harnesses.infers(reply, question, stated=stated))


def score_lmms_eval(reply: str, question: Question) -> float | None:
    """1 if a stand-alone letter is the right one, in either case: "a bag" is A.

    `None` for an empty reply, which leaves the denominator there, so that saying nothing raises
    the accuracy.
    """
    if question.answer is None or reply == "":
        return None
    return float(_only_letter(reply) == _right_letter(question))


def _right_letter(question: Question) -> str:
    """The right letter, of equal options the first; "" if there is none."""
    if question.answer is None:
        return ""
    return letter_of(question.choices.index(question.choices[question.answer]))


def _only_letter(reply: str) -> str:
    """Read a reply as lmms-eval's `mcq_acc` does: "B. text", or the first word that is a letter."""
    opening = re.match(r"([A-E])\.\s*(.+)$", reply.strip(), re.IGNORECASE)
    if opening:
        return opening[1].upper()
    text = reply.replace("\n", " ").replace("\t", " ").strip()
    cleaned = text
    for mark in _PUNCTUATION:
        touches = f"{mark} " in text or f" {mark}" in text or _THOUSANDS.search(text)
        cleaned = cleaned.replace(mark, "" if touches else " ")
    cleaned = _FULL_STOP.sub("", cleaned, count=_MAX_FULL_STOPS)
    cleaned = cleaned.strip("'").strip('"').strip(")").strip("(").strip().lower()
    letter = re.search(r"\b([A-E])\b", cleaned, re.IGNORECASE)
    return letter[1].upper() if letter else cleaned


def sample_metrics(record: annotated.Record, reply: str) -> dict[str, Any]:
    """The metric of lmms-eval's tasks."""
    right = _right_letter(record.question)
    value = int(score_lmms_eval(reply, record.question) or 0)
    return {"mvbench_accuracy": {"pred_answer": reply, "gt_answer": right, "score": value}}


def columns(record: annotated.Record) -> dict[str, Any]:
    """Columns of `MVBench.tsv`."""
    task = TASK_OF[record.question.groups["task"]]
    start, end = record.clip if record.clip is not None else ("", "")
    is_cut = task.bounded and record.clip is None
    return {
        "task_type": task.name,
        "prefix": record.row.get("prefix") or (task.cut if is_cut else f"video/{task.source}/"),
        "data_type": "frame" if task.frames else "video",
        "bound": task.bounded,
        "start": start,
        "end": end,
        **annotated.text_answer_columns(record),
    }


def columns_of_cut_clips(record: annotated.Record) -> dict[str, Any]:
    """Columns of `MVBench_MP4.tsv`."""
    dropped = ("data_type", "bound", "start", "end")
    return {name: value for name, value in columns(record).items() if name not in dropped}


# VLMEvalKit's two tables, the branch `video`, the branch `main` (and lmms-eval's link to either).
_PREFIXES = ("", "mvbench_video/")
_CUT_FILES = ("MVBench_MP4.tsv", "test.json")
_BASES = [f"{prefix}{sub}" for prefix in _PREFIXES for sub in ("", "video/", "video/data0613/")]


class MVBenchBenchmark(annotated.AnnotatedBenchmark):
    """MVBench in either public layout, as downloaded or as a harness leaves it.

    The 200 clips of Fine-grained Pose are withheld by their owner; without them these questions
    stay, as failed rows (set `max_failures` accordingly).
    """

    name = "mvbench"
    title = "MVBench"
    layout = (
        "json/action_sequence.json and 19 others with video/<folders> (branch main), "
        "or test.json with the folders of branch video"
    )
    task_files: ClassVar = {task.name: f"{task.stem}.json" for task in ALL_TASKS}
    task_folders = tuple(f"{prefix}json" for prefix in _PREFIXES)
    annotations = tuple(
        f"{prefix}{name}" for prefix in _PREFIXES for name in ("MVBench.tsv", *_CUT_FILES)
    )
    answer_form = "text"
    splits: ClassVar = {"test": 4000}
    protocols: ClassVar = {
        **protocol.in_versions(
            "vlmevalkit",
            VLMEVALKIT,
            score_vlmevalkit,
            partial(score_vlmevalkit, stated=False),
            wordings=(("internvl", without_beginning),),
        ),
        **protocol.in_versions("lmms_eval", LMMS_EVAL, score_lmms_eval),
    }
    paper_column = PaperColumn(2)
    vlmevalkit_table = annotated.VLMEvalKitTable(
        "MVBench", columns, annotated.VLMEvalKitTable("MVBench_MP4", columns_of_cut_clips)
    )
    lmms_eval_samples = annotated.LmmsEvalSamples(
        lambda record: f"mvbench_{TASK_OF[record.question.groups['task']].stem}",
        sample_metrics,
        target=lambda record: (
            annotated.written_answer(record)
            if record.question.answer is None
            else record.question.choices[record.question.answer]
        ),
        doc_id=lambda record: int(record.question.id.rpartition("-")[2]),  # row of the task
    )
    # Branch `main` has the source videos, branch `video` the clips that are cut already.
    releases = (
        Release(
            repository="OpenGVLab/MVBench",
            licence="MIT for the annotations; the videos keep the licences of their eleven data "
            "sets",
            annotations=("json/*.json", "test.json"),
            videos=("*.zip",),
            into=None,
            gated="who accepts its terms on the hub",
            notes=(f"200 clips of {WITHHELD_TASK} are not in it: {WITHHELD}",),
        ),
    )

    def _rows_of(self, content: Any) -> list[tables.Row]:
        if isinstance(content, list):
            return content
        folders = content.get("root") or {}
        return [
            {**row, "task_type": task, "prefix": folders.get(task)}
            for task, rows in content["meta"].items()
            for row in rows
        ]

    def _record(
        self, index: int, number: int, row: tables.Row, table: annotated.Table
    ) -> annotated.Record:
        record = super()._record(index, number, row, table)
        task, file = TASK_OF[record.question.groups["task"]], self._file(row)
        folder = str(row.get("prefix") or "")
        path, is_cut = self._locate(task, file, folder, table.path.name in _CUT_FILES)
        clip = None if is_cut or not task.bounded else tables.bounds_of(row)
        inner = Path(file).parent.as_posix().removeprefix(".")
        name = "/".join(filter(None, [task.cut if is_cut else task.source, inner, Path(path).stem]))
        video = annotated.clip_id(name, clip)
        return replace(record, video_id=video, path=path, clip=clip)

    def _id(self, row: tables.Row, video: str, number: int) -> str:
        stem = TASK_OF[self._groups(row)["task"]].stem
        return self._numbered(f"{stem}-", first=0)

    def _groups(self, row: tables.Row) -> dict[str, str]:
        task = tables.text_of(row, "task_type")
        if task not in TASK_OF:
            raise InputError(f"unknown task {task!r}")
        return {"task": TASK_OF[task].name}

    def missing_reason(self, record: annotated.Record) -> str | None:
        """Explain the clips that the owner of NTU RGB+D withholds."""
        return WITHHELD if record.question.groups["task"] == WITHHELD_TASK else None

    def _locate(self, task: Task, file: str, folder: str, cut: bool) -> tuple[str, bool]:
        """Return where a clip's video is, or would be, and whether it is cut already.

        Args:
            task: Its task.
            file: Its name in the row.
            folder: Its folder as the annotations name it; "" if they do not.
            cut: Whether these annotations belong to the branch `video`.
        """
        names = [file, f"{file}.mp4", str(Path(file).with_suffix(".mp4"))]
        if folder and (found := self.media.find([folder], names if cut else [file])):
            return found, cut
        if task.cut != task.source:
            found = self.media.find([f"{base}{task.cut}" for base in _BASES], names)
            if found:
                return found, True
        found = self.media.find([f"{base}{task.source}" for base in _BASES], [file])
        if found:
            return found, False
        bounded = [t.cut for t in ALL_TASKS if t.bounded]
        if cut or any(self.media.holds(f"{base}{name}") for base in _BASES for name in bounded):
            return self.media.at(folder or task.cut, file), True
        return self.media.at(folder or f"video/{task.source}", file), False
