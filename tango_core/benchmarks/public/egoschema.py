"""EgoSchema: three minutes of daily life seen from the head of a person, five long options.

Mangalam et al., "EgoSchema: A Diagnostic Benchmark for Very Long-form Video Language
Understanding", NeurIPS 2023, https://arxiv.org/abs/2308.09126. Answers to 500 of the 5,031
questions are public; the others are known to the authors' server alone. Prompt and rules: lmms-eval
75571cfe, `lmms_eval/tasks/egoschema`. VLMEvalKit e8e78f05 has no EgoSchema: under its name the
question is put in the same words, and there is no harness's score.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any, ClassVar

from tango_core.benchmarks import annotated, tables
from tango_core.benchmarks.protocols import protocol
from tango_core.benchmarks.protocols.harnesses import guess_score, mmmu_letter
from tango_core.benchmarks.releases import Release
from tango_core.benchmarks.scoring.multiple_choice import LETTERS, lettered
from tango_core.types import Question

PROMPT = protocol.PromptTemplate(f"{{question}}\n{{options}}\n{protocol.LETTER_PLEASE}")
ARIA = replace(PROMPT, after=f"Please answer the question about the video:\n{PROMPT.after}")
_FORMS = {form: form for form in ("({})", "{} ", "{}.")}


def letter(reply: str, question: Question) -> str:
    """The letter that lmms-eval's task reads, or "": of several the one whose last place is first.

    A space or a full stop behind a capital is enough: "ABC " is C.
    """
    return mmmu_letter(reply, lettered(question.choices), _FORMS, earliest=True)


def score(reply: str, question: Question) -> float | None:
    """1 if that letter is right, and what a guess is worth where there is none."""
    return guess_score(letter(reply, question), question)


def sample_metrics(record: annotated.Record, reply: str) -> dict[str, Any]:
    """The metrics of lmms-eval's tasks; -1 where it would guess."""
    index = LETTERS.find(letter(reply, record.question) or "?")
    truth = annotated.written_answer(record)
    return {
        "submission": {record.video_id: index},
        "score": {"pred": index, "ground_truth": truth},
    }


_AUTHORS, _ANSWERS = "questions.json", "subset_answers.json"
_RELEASE = Release(
    repository="lmms-lab/egoschema",
    licence="research only, by the terms of Ego4D",
    annotations=("Subset/test-*.parquet", "GENERATION/test-*.parquet"),
    videos=("videos_chunked_*.zip",),
)


class EgoSchemaBenchmark(annotated.AnnotatedBenchmark):
    """EgoSchema from the hub's tables or the authors' `questions.json`.

    `"subset"`, also under the recipe's default name `"test"`, are the 500 questions with public
    answers. `"full"` are all questions, whose replies are recorded, exported as the file to hand
    in, and not scored.
    """

    name = "egoschema"
    title = "EgoSchema"
    layout = f"Subset/test-*.parquet or {_AUTHORS} with {_ANSWERS}, and videos/<video_idx>.mp4"
    annotations = ("Subset/test-*.parquet", _AUTHORS)
    split_annotations: ClassVar = {"full": ("GENERATION/test-*.parquet", _AUTHORS)}
    hidden_splits = ("full",)
    folders = ("videos",)
    video_columns = ("video_idx", "q_uid")
    option_columns = ("option", "option {}")
    options_have_letters = True
    answer_form = "index"
    splits: ClassVar = {"test": 500, "subset": 500, "full": 5031}
    protocols: ClassVar = {
        **protocol.of_lmms_eval(PROMPT, score),
        **protocol.in_versions("lmms_eval_aria", ARIA, score),
    }
    lmms_eval_samples = annotated.LmmsEvalSamples(
        lambda record: "egoschema_subset" if annotated.right_letter(record) else "egoschema",
        sample_metrics,
        target=annotated.written_answer,
        key_in=annotated.first_key_of("submission"),
    )
    releases = (_RELEASE, replace(_RELEASE, repository="lmms-eval/egoschema"))

    def _rows(self, path: Path) -> list[tables.Row]:
        rows = super()._rows(path)
        if path.name != _AUTHORS or self.split in self.hidden_splits:
            return rows
        answers = tables.read_json(self._find_annotations((_ANSWERS,)))
        known = [row for row in rows if row.get("q_uid") in answers]
        return [{**row, "answer": answers[row["q_uid"]]} for row in known]

    def _id(self, row: tables.Row, video: str, number: int) -> str:
        return video
