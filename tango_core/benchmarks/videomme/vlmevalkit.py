"""Video-MME in VLMEvalKit: the prompt, the score, and the table of the data set."""

from __future__ import annotations

import re
from typing import Any

from tango_core.benchmarks.annotations.harness_files import VLMEvalKitTable
from tango_core.benchmarks.annotations.records import Record
from tango_core.benchmarks.protocols.failures import NO_REPLY
from tango_core.benchmarks.protocols.protocol import Protocol
from tango_core.benchmarks.protocols.reading import read_choice
from tango_core.benchmarks.protocols.subtitles import Cue, SubtitleRule, Watched, cues_of_srt
from tango_core.benchmarks.protocols.versions import in_versions
from tango_core.benchmarks.protocols.vlmevalkit import equal_letter, first_capital, for_internvl
from tango_core.benchmarks.scoring.multiple_choice import letter_of, lettered
from tango_core.types import Prompt, Question, Subtitles

_FRAMES = "\nThese are the frames of a video. "
_TASK = (
    "Select the best answer to the following multiple-choice question based on the video. Respond "
    "with only the letter (A, B, C, or D) of the correct option.\n"
)
# As pysubs2 reads SubRip: these three tags become codes of its own, all others are dropped.
_KEPT_TAG = re.compile(r"< *(/?) *([isu]) *>")
_TAG = re.compile(r"< */? *[a-zA-Z][^>]*>")
# A frame is shown less than this before the place in the video that it stands for.
_LONGEST_FRAME_MS = 100


def render(question: Question) -> Prompt:
    """Video-MME without subtitles: the clip, then everything else."""
    return Prompt(before="", after=f"{_FRAMES}{_TASK}{_asked(question)}")


def render_subtitled(question: Question, lines: str) -> Prompt:
    """Video-MME with these lines of subtitles, which may be none."""
    listed = f"This video's subtitles are listed below:\n{lines}\n"
    return Prompt(before="", after=f"{_FRAMES}{listed}{_TASK}{_asked(question)}")


def _asked(question: Question) -> str:
    """Question and options."""
    lines = "\n".join([question.text, *lettered(question.choices)])
    return f"Question: {lines}\nAnswer: "


def choose_subtitles(subtitles: Subtitles, watched: Watched) -> str:
    """The first cue that is on the screen at each of its frames, a line per frame.

    It takes k frames as for models that read lists of images, n / (k + 1) apart, also for a model
    that reads a video. A cue that lasts longer is repeated.
    """
    cues = [(cue.start_ms, cue.end_ms, _words(cue)) for cue in cues_of_srt(subtitles.text or "")]
    shown = []
    for now in _moments(watched):
        words = next((text for start, end, text in cues if start < now < end), "")
        if words.strip():
            shown.append(words)
    return "\n".join(shown)


def _moments(watched: Watched) -> list[int]:
    """When its frames are shown, in milliseconds."""
    numbers = range(1, watched.num_frames + 1)
    if watched.rate is None or watched.num_available is None:
        step_ms = watched.duration_s * 1000 / (watched.num_frames + 1)
        places = [number * step_ms for number in numbers]
        shown = [1000 * time for time in watched.times]
        # Models that read lists of images are shown these very frames.
        if len(shown) == len(places) and all(
            -1 < place - time < _LONGEST_FRAME_MS for place, time in zip(places, shown, strict=True)
        ):
            places = shown
        return [round(place) for place in places]
    step = watched.num_available / (watched.num_frames + 1)
    return [round(int(number * step) * (1000 / watched.rate)) for number in numbers]


def _words(cue: Cue) -> str:
    """What pysubs2 makes of a cue, with a space for a line break."""
    # The number of the next cue is not one of the lines.
    text = re.sub(r"\n+ *\d+ *$", "", "\n".join(cue.lines).strip())
    if re.fullmatch(r"\d+", text) and not "".join(cue.lines[:1]).strip():
        return ""
    text = _KEPT_TAG.sub(lambda tag: f"{{\\{tag[2]}{0 if tag[1] else 1}}}", text)
    return _TAG.sub("", text).replace("\n", " ")


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
    wordings=(("internvl", for_internvl),),
    subtitles=SubtitleRule(choose_subtitles, render_subtitled),
)
PROTOCOLS = in_versions(PROTOCOL)

TABLE = VLMEvalKitTable("Video-MME", columns)
