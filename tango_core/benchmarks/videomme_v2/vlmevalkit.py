"""Video-MME-v2 in VLMEvalKit: the prompts, the score, and the table of the data set.

Source: open-compass/VLMEvalKit, `vlmeval/dataset/videomme_v2.py`.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from tango_core.benchmarks.annotations.harness_files import VLMEvalKitTable
from tango_core.benchmarks.annotations.records import Record
from tango_core.benchmarks.protocols.failures import NO_REPLY
from tango_core.benchmarks.protocols.protocol import Protocol
from tango_core.benchmarks.protocols.reading import read_choice
from tango_core.benchmarks.protocols.versions import in_versions
from tango_core.benchmarks.scoring.multiple_choice import letter_of, lettered
from tango_core.benchmarks.videomme_v2.groups import HEADS, stated
from tango_core.benchmarks.videomme_v2.letters import score
from tango_core.benchmarks.videomme_v2.prompts import (
    LETTER_ONLY,
    REASON_FIRST,
    REASONING_TOKENS,
    asked,
)
from tango_core.types import Prompt, Question

# No line break follows it there.
_FRAMES = "These are the frames of a video."


def render(question: Question) -> Prompt:
    """The clip, then everything else, without subtitles."""
    return Prompt(before="", after=_FRAMES + asked(question, LETTER_ONLY))


def render_reasoning(question: Question) -> Prompt:
    """The same with the instruction of the reasoning variant."""
    return Prompt(before="", after=_FRAMES + asked(question, REASON_FIRST))


def columns(record: Record) -> dict[str, Any]:
    """Columns of `Video-MME-v2.tsv`."""
    question, video = record.question, record.video_id
    assert question.answer is not None
    return {
        "index": record.index,
        "video": video,
        "video_path": f"./video/{video}.mp4",
        "subtitle_path": f"./subtitle/{video}.jsonl",
        "url": stated(record.row, "url"),
        "group_type": question.groups["group_type"],
        "group_structure": stated(record.row, "group_structure"),
        "question_id": question.id,
        "question": question.text,
        "options": "\n".join(lettered(question.choices)),
        "answer": letter_of(question.answer),
        **{name: stated(record.row, name) for name in HEADS},
    }


PROTOCOL = Protocol("vlmevalkit", render, read_choice, harness_score=score, failed_reply=NO_REPLY)
_REASONING = replace(
    PROTOCOL,
    name="vlmevalkit_reasoning",
    render=render_reasoning,
    max_new_tokens=REASONING_TOKENS,
)
PROTOCOLS = {**in_versions(PROTOCOL), **in_versions(_REASONING)}

TABLE = VLMEvalKitTable("Video-MME-v2", columns)
