"""PerceptionTest, validation: memory, abstraction, physics and semantics in 23 seconds.

Patraucean et al., "Perception Test: A Diagnostic Benchmark for Multimodal Video Models", NeurIPS
2023, https://arxiv.org/abs/2305.13786: 19,140 questions with three options about 5,900 videos.
Prompt and rules: lmms-eval 75571cfe, `lmms_eval/tasks/perceptiontest/val`. VLMEvalKit e8e78f05 has
no PerceptionTest: under its name the question is put in the same words, and there is no harness's
score.
"""

from __future__ import annotations

import re
from functools import partial
from pathlib import Path
from typing import Any, ClassVar

from tango_core.benchmarks import annotated, tables
from tango_core.benchmarks.protocols import protocol
from tango_core.benchmarks.protocols.harnesses import letter_score
from tango_core.benchmarks.releases import Release
from tango_core.benchmarks.scoring.multiple_choice import LETTERS

PROMPT = protocol.PromptTemplate(f"{{question}}\n{{options}}\n{protocol.LETTER_PLEASE}")


def letter(reply: str) -> str:
    """The first capital from A to D that stands alone, or "": "A dog" is A."""
    found = re.search(r"\b([A-D])\b", reply)
    return found[1] if found else ""


def sample_metrics(record: annotated.Record, reply: str) -> dict[str, Any]:
    """The metric of lmms-eval's task."""
    index, answer = LETTERS.find(letter(reply) or "?"), record.row["answer_id"]
    return {
        "accuracy": {
            "video_name": record.video_id,
            "question": record.question.text,
            "pred_id": index,
            "answer_id": answer,
            "correct": int(index == int(answer)),
        }
    }


class PerceptionTestBenchmark(annotated.AnnotatedBenchmark):
    """PerceptionTest from the hub's table or the authors' `all_valid.json`.

    `"validation"` and the recipe's default name `"test"` are the same split: the authors' test set
    has no public answers and is not read.
    """

    name = "perceptiontest"
    title = "PerceptionTest"
    layout = "mc_question_val/validation-*.parquet or all_valid.json, and videos/<video_name>.mp4"
    annotations = ("mc_question_val/validation-*.parquet", "all_valid.json")
    folders = ("videos",)
    video_columns = ("video_name",)
    answer_column = "answer_id"
    answer_form = "index"
    several_valued: ClassVar = ("tag",)
    splits: ClassVar = {"test": 19140, "validation": 19140}
    protocols: ClassVar = protocol.of_lmms_eval(
        PROMPT, partial(letter_score, letter), max_new_tokens=protocol.PLAIN.max_new_tokens
    )
    lmms_eval_samples = annotated.LmmsEvalSamples(
        "perceptiontest_val_mc",
        sample_metrics,
        target=lambda record: str(record.row["answer_id"]),
        key_in=annotated.fields_of_metric("accuracy", "video_name", "question"),
    )
    releases = tuple(
        Release(
            repository=repository,
            licence="CC-BY 4.0",
            annotations=("mc_question_val/validation-*.parquet",),
            videos=("*.zip",),
        )
        for repository in ("lmms-lab/PerceptionTest_Val", "lmms-eval/PerceptionTest_Val")
    )

    def _rows(self, path: Path) -> list[tables.Row]:
        if path.suffix != ".json":
            return super()._rows(path)
        return tables.nested_rows(
            path,
            lambda content: [
                {"video_name": video, "question_id": asked["id"], **asked}
                for video, own in content.items()
                for asked in own["mc_question"]
            ],
            "{video: {mc_question: [question, ..]}}",
        )

    def _id(self, row: tables.Row, video: str, number: int) -> str:
        return f"{video}-{tables.text_of(row, 'question_id')}"

    def _groups(self, row: tables.Row) -> dict[str, str]:
        found = {name: row.get(name) for name in ("area", "reasoning", "tag")}
        return {
            name: ", ".join(map(str, own)) if isinstance(own, list) else str(own)
            for name, own in found.items()
            if not tables.is_missing(own) and own != []
        }
