"""Video-MME: 900 videos in three lengths, three questions each.

Fu et al., "Video-MME: The First-Ever Comprehensive Evaluation Benchmark of Multi-modal LLMs in
Video Analysis", 2024, https://arxiv.org/abs/2405.21075. Data: `lmms-lab/Video-MME` on the Hugging
Face hub. The published comparisons of pruning methods are without subtitles. Prompts and rules:
VLMEvalKit, `vlmeval/dataset/videomme.py`; lmms-eval, `lmms_eval/tasks/videomme`.
"""

from __future__ import annotations

import re
from bisect import bisect_left
from functools import partial
from typing import Any, ClassVar

import numpy as np

from tango_core.benchmarks import annotated, tables
from tango_core.benchmarks.annotated import AnnotatedBenchmark, Record, Table
from tango_core.benchmarks.base import CrossTable, PaperColumn
from tango_core.benchmarks.protocols import harnesses
from tango_core.benchmarks.protocols.protocol import LETTER_PLEASE, after_clip, in_versions
from tango_core.benchmarks.protocols.subtitles import Cue, SubtitleRule, Watched, cues_of_srt
from tango_core.benchmarks.releases import Release, ReleasePart
from tango_core.benchmarks.scoring.multiple_choice import LETTERS, letter_of, lettered
from tango_core.benchmarks.tables import Row
from tango_core.types import Prompt, Question, Subtitles

GROUPS = ("duration", "domain", "sub_category", "task_type")

_FRAMES = "\nThese are the frames of a video. "
_LETTER_ONLY = "Respond with only the letter (A, B, C, or D) of the correct option."
_TASK = "Select the best answer to the following multiple-choice question based on the video"
# As pysubs2 reads SubRip: these three tags become codes of its own, all others are dropped.
_KEPT_TAG = re.compile(r"< *(/?) *([isu]) *>")
_TAG = re.compile(r"< */? *[a-zA-Z][^>]*>")
# A frame is shown less than this before the place in the video that it stands for.
_LONGEST_FRAME_MS = 100
# The release's files of subtitles hold every line in such a tag; lmms-eval drops a cue without it.
_LINE = re.compile(r'<font color="white" size=".72c">(.*?)</font>')


def render_vlmevalkit(question: Question) -> Prompt:
    """VLMEvalKit without subtitles: the clip, then everything else."""
    return after_clip(f"{_FRAMES}{_vlmevalkit(question)}")


def render_vlmevalkit_subtitled(question: Question, lines: str) -> Prompt:
    """VLMEvalKit with these lines of subtitles, which may be none."""
    listed = f"This video's subtitles are listed below:\n{lines}\n"
    return after_clip(f"{_FRAMES}{listed}{_vlmevalkit(question)}")


def _vlmevalkit(question: Question) -> str:
    lines = "\n".join([question.text, *lettered(question.choices)])
    return f"{_TASK}. {_LETTER_ONLY}\nQuestion: {lines}\nAnswer: "


def render_lmms_eval(question: Question) -> Prompt:
    """lmms-eval; the text mentions subtitles also where there are none."""
    return after_clip(f"{_lmms_eval(question)}\n\n{LETTER_PLEASE}")


def render_llava_video(question: Question) -> Prompt:
    """The ending that lmms-eval uses for LLaVA-Video."""
    return after_clip(f"{_lmms_eval(question)}\nThe best answer is:")


def render_qwen3_vl(question: Question) -> Prompt:
    """The words that lmms-eval has for Qwen3-VL."""
    options = "\n".join(lettered(question.choices))
    asked = f"Question: {question.text}\nOptions:\n{options}"
    return after_clip(f"{asked}\nAnswer with the option letter only.")


def render_subtitled(question: Question, lines: str) -> Prompt:
    """Task `videomme_w_subtitle`, which ends in the same words for every model."""
    return _below(lines, render_llava_video(question))


def render_qwen3_vl_subtitled(question: Question, lines: str) -> Prompt:
    """The same for Qwen3-VL."""
    return _below(lines, render_qwen3_vl(question))


def _below(lines: str, prompt: Prompt) -> Prompt:
    return after_clip(f"This video's subtitles are listed below: \n{lines}\n{prompt.after}")


def _lmms_eval(question: Question) -> str:
    task = f"{_TASK} and the subtitles. {_LETTER_ONLY}"
    return "\n".join([task, question.text, *lettered(question.choices)])


def choose_vlmevalkit(subtitles: Subtitles, watched: Watched) -> str:
    """The first cue that is on the screen at each of VLMEvalKit's frames, a line per frame.

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
    """When VLMEvalKit's frames are shown, in milliseconds."""
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


def choose_lmms_eval(subtitles: Subtitles, watched: Watched, num_frames: int = 32) -> str:
    """Every cue that is on the screen at one of some frames from first to last, once.

    lmms-eval looks at 32 frames whatever the model is shown, at 768 for LLaVA-Video.
    """
    if subtitles.text is None:
        return "No subtitles available"
    by_times = {
        (cue.start_ms, cue.end_ms): " ".join(cue.lines) for cue in cues_of_srt(subtitles.text)
    }
    cues = list(by_times.items())
    # Frames by their numbers, or by their times in seconds where no numbers are known.
    last = watched.duration_s if watched.num_available is None else watched.num_available - 1
    places = np.linspace(0, last, num_frames)
    frames: list[float] = (places if watched.rate is None else places.astype(int)).tolist()
    found = []
    for index, ((start, end), _) in enumerate(cues):
        bounds = [
            ms / 1000 if watched.rate is None else int(ms / 1000 * watched.rate)
            for ms in (start, end)
        ]
        first = bisect_left(frames, bounds[0])
        if first < num_frames and frames[first] < bounds[1]:
            found.append((first, index))
    # A set, as there, filled frame by frame: its numbers need not be in order of time.
    lines = [_LINE.search(cues[index][1]) for index in list({index for _, index in sorted(found)})]
    return "\n".join(line[1] for line in lines if line)


def sample_metrics(record: Record, reply: str) -> dict[str, Any]:
    """The metric of lmms-eval's task."""
    groups = record.question.groups
    letter = harnesses.ranked_letter(reply)
    return {
        "videomme_perception_score": {
            "question_id": record.question.id,
            "duration": groups["duration"],
            "category": groups["domain"],
            "sub_category": groups["sub_category"],
            "task_category": groups["task_type"],
            "pred_answer": letter,
            "answer": annotated.right_letter(record),
            "score": float(letter == annotated.right_letter(record)),
            "videoID": record.video_id,
        }
    }


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


_first_capital_score = partial(
    harnesses.letter_score, partial(harnesses.first_capital, letters="ABCD")
)
_older_score = partial(
    harnesses.letter_score,
    partial(harnesses.first_capital, letters="ABCD", phrases=harnesses.MERGED_PHRASES),
)
_in_lmms_eval = partial(in_versions, score=harnesses.ranked_score, older=_older_score)
_PARQUET = "videomme/test-00000-of-00001.parquet"
_PARTS = (
    ReleasePart("annotations", ("videomme/test-*.parquet",)),
    ReleasePart("videos", ("videos_chunked_*.zip",)),
    ReleasePart("subtitles", ("subtitle.zip",), needed=False),
)
_LICENCE = "academic research only, by the terms of Video-MME"


class VideoMMEBenchmark(AnnotatedBenchmark):
    """Video-MME in the layout of the release, of VLMEvalKit (`Video-MME.tsv`) or of lmms-eval."""

    name = "videomme"
    title = "Video-MME"
    layout = f"{_PARQUET} or Video-MME.tsv, and video/<videoID>.mp4 or data/<videoID>.mp4"
    annotations = (
        _PARQUET,
        "test-00000-of-00001.parquet",
        "Video-MME.tsv",
        "videomme.json",
        "videomme.jsonl",
        *annotated.in_hub_cache("lmms-lab/Video-MME", _PARQUET),
    )
    # The release and VLMEvalKit; lmms-eval below HF_HOME/videomme and below HF_HOME.
    folders = ("video", "data", "videos", "videomme/data", ".")
    suffixes = annotated.VIDEO_SUFFIXES
    subtitle_folders = ("subtitle", "subtitles", "videomme/subtitle", "../subtitle")
    splits: ClassVar = {"test": 2700}
    protocols: ClassVar = {
        **in_versions(
            "vlmevalkit",
            render_vlmevalkit,
            _first_capital_score,
            wordings=(("internvl", harnesses.for_internvl),),
            subtitles=SubtitleRule(choose_vlmevalkit, render_vlmevalkit_subtitled),
        ),
        **_in_lmms_eval(
            "lmms_eval",
            render_lmms_eval,
            subtitles=SubtitleRule(choose_lmms_eval, render_subtitled),
        ),
        **_in_lmms_eval(
            "lmms_eval_llava_vid",
            render_llava_video,
            subtitles=SubtitleRule(partial(choose_lmms_eval, num_frames=768), render_subtitled),
        ),
        **_in_lmms_eval(
            "lmms_eval_qwen3_vl",
            render_qwen3_vl,
            subtitles=SubtitleRule(choose_lmms_eval, render_qwen3_vl_subtitled),
        ),
    }
    paper_column = PaperColumn(1, "duration", ("short", "medium", "long"))
    cross_table = CrossTable("duration", ("domain", "sub_category", "task_type"))
    vlmevalkit_table = annotated.VLMEvalKitTable("Video-MME", columns)
    lmms_eval_samples = annotated.LmmsEvalSamples(
        "videomme",
        sample_metrics,
        key_in=annotated.fields_of_metric("videomme_perception_score", "question_id"),
        subtitled_task="videomme_w_subtitle",
    )
    releases = (
        Release("lmms-lab/Video-MME", _PARTS, _LICENCE),
        Release("lmms-eval/Video-MME", _PARTS, _LICENCE),
    )

    def _tables(self) -> list[Table]:
        (table,) = super()._tables()
        self._numbers = annotated.numbers_among(
            row.get("videoID") or row.get("video") for row in table.rows
        )
        return [table]

    def _record(self, index: int, number: int, row: Row, table: Table) -> Record:
        # VLMEvalKit's table calls the YouTube id `video` and has no question ids.
        video = tables.text_of(row, "videoID", "video")
        written = tables.list_of(row, "options" if "options" in row else "candidates")
        choices = tuple(
            re.sub(rf"^\(?{letter}[.):]\)?\s*", "", option)
            for letter, option in zip(LETTERS, written, strict=False)
        )
        answer = annotated.index_of_letter(tables.text_of(row, "answer").strip(), choices)
        own_id = row.get("question_id")
        return Record(
            video_id=video,
            path=self._video_path(video),
            question=Question(
                id=f"{video}-{self._numbers[index]}" if tables.is_missing(own_id) else str(own_id),
                text=tables.text_of(row, "question"),
                choices=choices,
                answer=answer,
                groups={name: tables.text_of(row, name) for name in GROUPS},
            ),
            notes=(
                *annotated.option_notes(choices, answer),
                *annotated.form_notes(choices, "\n".join(written)),
            ),
        )

    def subtitle_path(self, record: Record) -> str | None:
        """Where the `.srt` file of a question's video is; `None` for a video without."""
        return self.media.find(self.subtitle_folders, [f"{record.video_id}.srt"])
