"""MVBench in VLMEvalKit: the prompt, the score, and the table of the data set."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from tango_core.benchmarks.annotations.harness_files import VLMEvalKitTable, text_answer_columns
from tango_core.benchmarks.annotations.records import Record
from tango_core.benchmarks.mvbench.tasks import TASK_OF
from tango_core.benchmarks.protocols.failures import FAILED_REPLY, NO_REPLY
from tango_core.benchmarks.protocols.protocol import Protocol
from tango_core.benchmarks.protocols.reading import read_choice
from tango_core.benchmarks.protocols.versions import in_versions
from tango_core.benchmarks.protocols.vlmevalkit import infers, with_bracketed_options
from tango_core.benchmarks.scoring.multiple_choice import letter_of
from tango_core.types import Prompt, Question

_TASK = (
    "Carefully watch the video and pay attention to the cause and sequence of events, the detail "
    "and movement of objects, and the action and pose of persons. Based on your observations, "
    "select the best option that accurately addresses the question.\n"
)

_BOUND_COLUMNS = ("data_type", "bound", "start", "end")


def render(question: Question) -> Prompt:
    """MVBench: the task, the clip, the question, and the beginning of a reply.

    Most wrappers of models put the beginning of the reply into the user's turn.
    """
    return Prompt(
        before=_TASK,
        after=f"{with_bracketed_options(question)}\nOnly give the best option.Best option:(",
    )


def for_internvl(asked: Prompt) -> Prompt:
    """A prompt as the wrapper of InternVL changes it: without the beginning of a reply."""
    return Prompt(asked.before, asked.after.replace("Best option:(", ""))


def score(reply: str, question: Question) -> float:
    """1 if MVBench's rating would count the reply as right, which is more often than it is.

    The first word is right if it is a part of "(b)": so are "", "(" and ")", for every right
    option. The rating counts every score that is not 0, and its failures are scored -1, so they are
    right, too.
    """
    return _score(reply, question, stated=True)


def score_2026_05(reply: str, question: Question) -> float:
    """The same, but "The correct answer is B" counts only where B is among the last four words."""
    return _score(reply, question, stated=False)


def _score(reply: str, question: Question, *, stated: bool) -> float:
    """Rate a reply; see `infer_option` for `stated`."""
    if FAILED_REPLY in reply:
        return 1.0
    # An answer that is none of the options is option -1 there, the character before "A".
    letter = "@" if question.answer is None else letter_of(question.answer)
    right = f"({letter.lower()})"
    first = reply.lower().strip().split(" ")[0]
    if first.replace(".", "") in right or right in first:
        return 1.0
    return float(infers(reply, question, stated=stated))


def columns(record: Record) -> dict[str, Any]:
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
        **text_answer_columns(record),
    }


def columns_of_cut_clips(record: Record) -> dict[str, Any]:
    """Columns of `MVBench_MP4.tsv`."""
    return {name: value for name, value in columns(record).items() if name not in _BOUND_COLUMNS}


PROTOCOL = Protocol(
    "vlmevalkit",
    render,
    read_choice,
    harness_score=score,
    failed_reply=NO_REPLY,
    wordings=(("internvl", for_internvl),),
)
PROTOCOLS = in_versions(PROTOCOL, replace(PROTOCOL, harness_score=score_2026_05))
CUT = VLMEvalKitTable("MVBench_MP4", columns_of_cut_clips)
TABLE = VLMEvalKitTable("MVBench", columns, CUT)
