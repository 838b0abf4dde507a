"""TOMATO: six kinds of temporal reasoning about 1,417 short videos of people, objects and figures.

Shangguan et al., "TOMATO: Assessing Visual Temporal Reasoning Capabilities in Multimodal Foundation
Models", ICLR 2025, https://arxiv.org/abs/2410.23266: 1,484 questions. Prompt and rules: lmms-eval
75571cfe, `lmms_eval/tasks/tomato`; it recommends 16 frames. VLMEvalKit e8e78f05 has no TOMATO:
under its name the question is put in the same words, and there is no harness's score.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any, ClassVar

from tango_core.benchmarks import annotated, tables
from tango_core.benchmarks.protocols.harnesses import letter_score, mmmu_letter
from tango_core.benchmarks.protocols.protocol import of_lmms_eval
from tango_core.benchmarks.releases import Release
from tango_core.benchmarks.scoring.multiple_choice import LETTERS
from tango_core.types import Prompt, Question

_AROUND = (
    "You will be provided with frames uniformly sampled from a video, the frames are provided in "
    "chronological order of the video. Analyze these frames and provide the answer to the question "
    "about the video content. Answer the multiple-choice question about the video content.\n\n"
    "You must use these frames to answer the multiple-choice question; do not rely on any externel "
    "knowledge or commonsense. \n\n<question> \n",
    " \n</question>\n\n<options> \n",
    " \n</options>\n\nEven if the information in these separate frames is not enough to answer the "
    "question, PLEASE TRY YOUR BEST TO GUESS AN ANSWER WHICH YOU THINK WOULD BE THE MOST POSSIBLE "
    "ONE BASED ON THE QUESTION. \n\nDO NOT GENERATE ANSWER SUCH AS 'NOT POSSIBLE TO DETERMINE.' \n",
)
# The authors' file -> its kind of reasoning as the hub's table writes it.
TASKS = {
    "count": "count",
    "direction": "direction",
    "rotation": "rotation",
    "shape&trend": "shape_trend",
    "velocity&frequency": "velocity_frequency",
    "visual_cues": "visual_cues",
}


def render(question: Question) -> Prompt:
    """The options stand in the prompt as Python writes a dictionary of them, by letter."""
    options = dict(zip(LETTERS, question.choices, strict=False))
    before, between, behind = _AROUND
    return Prompt("", f"{before}{question.text}{between}{options}{behind}")


def letter(reply: str, question: Question) -> str:
    """The letter that lmms-eval's task reads; A where there is none.

    A capital anywhere counts, in a word, too: "Clockwise" is C. Of several the last in brackets
    counts, or without brackets the first in the alphabet.
    """
    return mmmu_letter(reply, question.choices, {"{}": "({})"}) or "A"


def score(reply: str, question: Question) -> float | None:
    """1 if that letter is right."""
    return letter_score(lambda text: letter(text, question), reply, question)


def sample_metrics(record: annotated.Record, reply: str) -> dict[str, Any]:
    """The metric of lmms-eval's task."""
    named = ("reason_type", "demonstration_type")
    return {
        "tomato_score": {
            "question_id": str(record.row["id"]),
            "score": score(reply, record.question),
            **{name: record.question.groups[name] for name in named},
        }
    }


class TOMATOBenchmark(annotated.AnnotatedBenchmark):
    """TOMATO from lmms-eval's table or the authors' six JSON files."""

    name = "tomato"
    title = "TOMATO"
    layout = "data/test-*.parquet or data/count.json and five others, and videos/<type>/<key>.mp4"
    task_files: ClassVar = {task: f"{stem}.json" for stem, task in TASKS.items()}
    task_folders = ("data", ".")
    annotations = ("data/test-*.parquet", "test-*.parquet", "*/test-*.parquet")
    folders = (".", "videos", "TOMATO")
    video_columns = ("video_path",)
    answer_form = "index"
    group_columns: ClassVar = {
        "reason_type": "reason_type",
        "demonstration_type": "demonstration_type",
    }
    splits: ClassVar = {"test": 1484}
    protocols: ClassVar = of_lmms_eval(render, score, max_new_tokens=1024)
    lmms_eval_samples = annotated.LmmsEvalSamples(
        "tomato",
        sample_metrics,
        target=annotated.written_answer,
        key_in=annotated.fields_of_metric("tomato_score", "reason_type", "question_id"),
        by_doc_id=False,
    )
    releases = (
        Release(
            repository="lmms-eval/TOMATO",
            licence="CC-BY-SA 4.0 for the questions; research only for the videos",
            annotations=("*.parquet",),
            videos=("*.zip", "*.tar*", "*.mp4"),
        ),
    )

    def _rows(self, path: Path) -> list[tables.Row]:
        if path.suffix != ".json":
            return super()._rows(path)
        return tables.nested_rows(
            path,
            lambda content: [
                {
                    "id": number,
                    "reason_type": TASKS.get(path.stem),
                    "video_path": f"videos/{own.get('demonstration_type')}/{own.get('key')}.mp4",
                    **own,
                }
                for number, own in content.items()
            ],
            "{id: question}",
        )

    def _id(self, row: tables.Row, video: str, number: int) -> str:
        return f"{row['reason_type']}-{tables.text_of(row, 'id')}"
