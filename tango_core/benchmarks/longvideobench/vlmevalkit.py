"""LongVideoBench in VLMEvalKit: the prompts, the score, and the table of the data set."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from tango_core.benchmarks.annotations.harness_files import VLMEvalKitTable
from tango_core.benchmarks.annotations.records import Record
from tango_core.benchmarks.longvideobench.subtitles import between_frames
from tango_core.benchmarks.protocols.failures import NO_REPLY
from tango_core.benchmarks.protocols.protocol import Protocol
from tango_core.benchmarks.protocols.reading import read_choice
from tango_core.benchmarks.protocols.subtitles import SubtitleRule
from tango_core.benchmarks.protocols.versions import in_versions
from tango_core.benchmarks.protocols.vlmevalkit import LETTER_PLEASE, equal_letter, first_capital
from tango_core.benchmarks.scoring.multiple_choice import lettered
from tango_core.types import Prompt, Question

# https://github.com/open-compass/VLMEvalKit/issues/1563, fixed by pull request 1588 on 2026-06-28.
INVERTED = (
    "VLMEvalKit before 2026-06-28 (its change 1588) showed such a model LongVideoBench's subtitles "
    "exactly where they were not asked for: its older numbers without use_subtitle correspond to "
    "benchmark.subtitles: true here, those with it to false."
)


def render(question: Question) -> Prompt:
    """LongVideoBench without subtitles, which a model that reads videos never sees there."""
    lines = [question.text, *lettered(question.choices), LETTER_PLEASE]
    return Prompt(before="", after="\n".join(lines))


def render_subtitled(question: Question, lines: str) -> Prompt:
    """Behind the frames their subtitles, as models that read lists of images are shown them."""
    return Prompt(before="", after=lines + render(question).after)


def score(reply: str, question: Question) -> float | None:
    """1 if the first capital from A to E is the right one; `None` if the answer is not known."""
    return equal_letter(first_capital(reply, "ABCDE"), question)


def columns(record: Record) -> dict[str, Any]:
    """Columns of `LongVideoBench.tsv`: those of `lvb_val.json`, and three more."""
    options = {f"option{number}" for number in range(5)}
    return {
        **{k: v for k, v in record.row.items() if k not in options},
        "candidates": str(list(record.question.choices)),
        "correct_choice": record.question.answer,
        "duration_group": int(record.question.groups["duration"]),
        "index": record.index,
        "video": record.row.get("video_id", record.video_id),
        "video_path": f"./videos/{Path(record.path).name}",
    }


PROTOCOL = Protocol(
    "vlmevalkit",
    render,
    read_choice,
    harness_score=score,
    failed_reply=NO_REPLY,
    subtitles=SubtitleRule(between_frames, render_subtitled, ("internvl",), INVERTED),
)
PROTOCOLS = in_versions(PROTOCOL)

TABLE = VLMEvalKitTable("LongVideoBench", columns)
