"""NExT-QA: causes, order and content of what happens in videos of 44 seconds on average.

Xiao et al., "NExT-QA: Next Phase of Question-Answering to Explaining Temporal Actions", CVPR 2021,
https://arxiv.org/abs/2105.08276. `nextqa` is the part with five options, `nextqa_oe` the open-ended
one. Prompts and rules: lmms-eval 75571cfe, `lmms_eval/tasks/nextqa`. VLMEvalKit e8e78f05 has no
NExT-QA: under its name a question is put in the same words, and there is no harness's score.

lmms-eval rates open-ended replies by WUPS, which needs a tagger and WordNet that NLTK downloads.
Here such a reply is right if its words are those of a right answer, and there is no harness's
score; `tango export` writes the replies for lmms-eval.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, ClassVar

from tango_core.benchmarks import annotated, tables
from tango_core.benchmarks.protocols.harnesses import guess_score, mmmu_letter
from tango_core.benchmarks.protocols.protocol import PLAIN, PromptTemplate, of_lmms_eval, unscored
from tango_core.benchmarks.releases import Release
from tango_core.errors import InputError
from tango_core.types import Question

# Without a request for a letter.
PROMPT = PromptTemplate("{question}\n{options}")
OPEN = PromptTemplate("{question}\nAnswer a question using a short phrase or sentence.")
_FORMS = {"({})": "({})", "{} ": " {} ", "{}.": " {} "}
KINDS = {"C": "causal", "T": "temporal", "D": "descriptive"}


def score(reply: str, question: Question) -> float | None:
    """1 if the letter that lmms-eval's task reads is right; a guess's worth where there is none.

    "(B)" comes before "B " and "B."; of several the last one counts, "A B." is B.
    """
    return guess_score(mmmu_letter(reply, question.choices, _FORMS), question)


def sample_metrics(record: annotated.Record, reply: str) -> dict[str, Any]:
    """The metric of lmms-eval's task; where it would guess, the reply is wrong."""
    return {"exact_match": score(reply, record.question) == 1.0}


_OPEN = replace(PLAIN, name="lmms_eval", render=OPEN)
_RELEASE = Release(
    repository="lmms-lab/NExTQA",
    licence="MIT for the questions; the videos keep the terms of YFCC-100M",
    annotations=("MC/test-*.parquet",),
    videos=("videos.zip", "NExTVideo*.zip"),
)


class NExTQABenchmark(annotated.AnnotatedBenchmark):
    """Multiple choice, from the hub's table or the authors' `test.csv`."""

    name = "nextqa"
    title = "NExT-QA"
    layout = "MC/test-*.parquet or test.csv, and NExTVideo/<video>.mp4"
    annotations: ClassVar[Sequence[str]] = ("MC/test-*.parquet", "nextqa/test.csv", "test.csv")
    # lmms-eval's folder of both parts is `nextqa`.
    folders = ("NExTVideo", "nextqa/NExTVideo", "videos")
    option_columns = ("a{}",)
    answer_form = "index"
    splits: ClassVar = {"test": 8564}
    protocols: ClassVar = of_lmms_eval(PROMPT, score, max_new_tokens=PLAIN.max_new_tokens)
    lmms_eval_samples: ClassVar = annotated.LmmsEvalSamples(
        "nextqa_mc_test", sample_metrics, target=annotated.written_answer
    )
    releases: ClassVar[Sequence[Release]] = (
        _RELEASE,
        replace(_RELEASE, repository="lmms-eval/NExTQA"),
    )

    def _id(self, row: tables.Row, video: str, number: int) -> str:
        return f"{video}_{tables.text_of(row, 'qid')}"

    def _question(self, row: tables.Row) -> tuple[str, tuple[str, ...]]:
        """White space at the ends of question and options is dropped in the prompt."""
        text, choices = super()._question(row)
        return text.strip(), tuple(choice.strip() for choice in choices)

    def _groups(self, row: tables.Row) -> dict[str, str]:
        """The kind and the type of a question; lmms-eval counts the type TP as TN."""
        kind = tables.text_of(row, "type")
        if kind[:1] not in KINDS:
            raise InputError(f"type must begin with {', '.join(KINDS)}, got {kind!r}")
        return {"kind": KINDS[kind[0]], "type": "TN" if kind == "TP" else kind}


class NExTQAOpenBenchmark(NExTQABenchmark):
    """Open-ended, from the hub's tables; `"test"` and `"validation"`."""

    name = "nextqa_oe"
    title = "NExT-QA, open-ended"
    layout = "OE/test-*.parquet and OE/validation-*.parquet, and NExTVideo/<video>.mp4"
    annotations = ("OE/test-*.parquet",)
    split_annotations: ClassVar = {"validation": ("OE/validation-*.parquet",)}
    splits: ClassVar = {"test": 9178, "validation": 5343}
    protocols: ClassVar = {
        **unscored("lmms_eval", _OPEN),
        **unscored("vlmevalkit", _OPEN),
    }
    # Without its metric, WUPS.
    lmms_eval_samples: ClassVar = annotated.LmmsEvalSamples(
        lambda record: f"nextqa_oe_{record.row['split']}",
        lambda record, reply: {},
        target=annotated.written_answer,
    )
    releases = tuple(
        replace(one, annotations=("OE/test-*.parquet", "OE/validation-*.parquet"))
        for one in NExTQABenchmark.releases
    )

    def _rows(self, path: Path) -> list[tables.Row]:
        split = "val" if self.split == "validation" else "test"
        return [{**row, "split": split} for row in super()._rows(path)]

    def _question(self, row: tables.Row) -> tuple[str, tuple[str, ...]]:
        return tables.text_of(row, "question").strip(), ()

    def _answer(self, row: tables.Row, choices: object) -> int | None:
        return None

    def _accepted(self, row: tables.Row) -> tuple[str, ...]:
        """The answer, and the second annotator's if there is one."""
        other = row.get("additional_ref_answer")
        return (tables.answer_text_of(row), *([] if tables.is_missing(other) else [str(other)]))
