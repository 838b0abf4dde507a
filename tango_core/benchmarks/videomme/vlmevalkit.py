"""Video-MME in VLMEvalKit: the prompt, the score, and the table of the data set."""

from __future__ import annotations

from typing import Any

from tango_core.benchmarks.annotations.harness_files import VLMEvalKitTable
from tango_core.benchmarks.annotations.records import Record
from tango_core.benchmarks.protocols.failures import NO_REPLY
from tango_core.benchmarks.protocols.protocol import Protocol
from tango_core.benchmarks.protocols.reading import read_choice
from tango_core.benchmarks.protocols.versions import in_versions
from tango_core.benchmarks.protocols.vlmevalkit import LETTER_PLEASE, equal_letter, first_capital
from tango_core.benchmarks.scoring.multiple_choice import letter_of, lettered
from tango_core.types import Prompt, Question

_TASK = (
    "\nThese are the frames of a video. Select the best answer to the following multiple-choice "
    "question based on the video. Respond with only the letter (A, B, C, or D) of the correct "
    "option.\n"
)


def render(question: Question) -> Prompt:
    """Video-MME without subtitles: the clip, then everything else."""
    lines = "\n".join([question.text, *lettered(question.choices)])
    return Prompt(before="", after=f"{_TASK}Question: {lines}\nAnswer: ")


def render_internvl(question: Question) -> Prompt:
    """Video-MME as the wrapper of InternVL changes it: "Answer:" goes, a request comes.

    It deletes every line that begins so, in a question's text, too; the space behind it stays.
    """
    asked = render(question)
    return Prompt("", asked.after.replace("\nAnswer:", "") + f"\n{LETTER_PLEASE}")


def score(reply: str, question: Question) -> float | None:
    """1 if the first capital from A to D is the right one; `None` if the answer is not known."""
    return equal_letter(first_capital(reply, "ABCD"), question)


def columns(record: Record) -> dict[str, Any]:
    """Columns of `Video-MME.tsv`."""
    question, video = record.question, record.video_id
    assert question.answer is not None
    groups = question.groups
    return {
        "index": record.index,
        "video": video,
        "video_path": f"./video/{video}.mp4",
        "duration": groups["duration"],
        "domain": groups["domain"],
        "candidates": str(lettered(question.choices)),
        **{name: groups[name] for name in ("sub_category", "task_type")},
        "subtitle_path": f"./subtitle/{video}.srt",
        "question": question.text,
        "answer": letter_of(question.answer),
    }


PROTOCOL = Protocol(
    "vlmevalkit",
    render,
    read_choice,
    harness_score=score,
    failed_reply=NO_REPLY,
    wordings=(("internvl", render_internvl),),
)
PROTOCOLS = in_versions(PROTOCOL)

TABLE = VLMEvalKitTable("Video-MME", columns)
