"""EgoSchema, NExT-QA and TOMATO, whose replies lmms-eval reads by three copies of MMMU's rules.

EgoSchema: Mangalam et al., "EgoSchema: A Diagnostic Benchmark for Very Long-form Video Language
Understanding", NeurIPS 2023, https://arxiv.org/abs/2308.09126. Three minutes of daily life seen
from the head of a person, five long options. Answers to 500 of the 5,031 questions are public; the
others are known to the authors' server alone.

NExT-QA: Xiao et al., "NExT-QA: Next Phase of Question-Answering to Explaining Temporal Actions",
CVPR 2021, https://arxiv.org/abs/2105.08276. Causes, order and content of what happens in videos of
44 seconds on average; `nextqa` is the part with five options, `nextqa_oe` the open-ended one.
lmms-eval rates open-ended replies by WUPS, which needs a tagger and WordNet that NLTK downloads.
Here such a reply is right if its words are those of a right answer, and there is no harness's
score; `tango export` writes the replies for lmms-eval.

TOMATO: Shangguan et al., "TOMATO: Assessing Visual Temporal Reasoning Capabilities in Multimodal
Foundation Models", ICLR 2025, https://arxiv.org/abs/2410.23266. Six kinds of temporal reasoning
about 1,417 short videos of people, objects and figures: 1,484 questions; lmms-eval recommends 16
frames.

Prompts and rules: lmms-eval 75571cfe, `lmms_eval/tasks/{egoschema,nextqa,tomato}`. VLMEvalKit
e8e78f05 has none of the three: its protocol uses the same prompts here, and no score of a harness
is computed.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from operator import itemgetter
from pathlib import Path
from typing import Any, ClassVar

from tango_core.benchmarks import annotated, tables
from tango_core.benchmarks.protocols import protocol
from tango_core.benchmarks.protocols.harnesses import guess_score, letter_score
from tango_core.benchmarks.releases import Release
from tango_core.benchmarks.scoring.multiple_choice import LETTERS, lettered
from tango_core.errors import InputError
from tango_core.types import Prompt, Question


def mmmu_letter(
    reply: str, texts: Sequence[str], forms: Mapping[str, str], *, earliest: bool = False
) -> str:
    """Return the letter that lmms-eval's copies of MMMU's rules read from a reply, or "".

    The copies differ. A reply of more than five words in which no letter is found is searched for
    the texts of the options. Of several letters or texts the one counts that occurs last.

    Args:
        reply: The model's text.
        texts: The options' texts as the copy compares them.
        forms: Form of a letter, and the form whose last occurrence orders several letters found in
            that way. The first form that finds any letter decides.
        earliest: All forms are tried, and the letter counts whose last occurrence comes first.
    """
    for mark in ",.!?;:'":
        reply = reply.strip(mark)
    text = f" {reply} "
    found: list[tuple[str, int]] = []
    for form, place in forms.items():
        if earliest or not found:
            found += [
                (letter, text.rfind(place.format(letter)))
                for letter in LETTERS[: len(texts)]
                if form.format(letter) in text
            ]
    if not found and len(text.split()) > 5:
        lower = text.lower()
        at = (lower.rfind(own.lower()) for own in texts)
        found = [pair for pair in zip(LETTERS, at, strict=False) if pair[1] >= 0]
    if not found:
        return ""
    return (min if earliest else max)(found, key=itemgetter(1))[0]


EGOSCHEMA = protocol.PromptTemplate(f"{{question}}\n{{options}}\n{protocol.LETTER_PLEASE}")
ARIA = replace(EGOSCHEMA, after=f"Please answer the question about the video:\n{EGOSCHEMA.after}")
_EGOSCHEMA_FORMS = {form: form for form in ("({})", "{} ", "{}.")}
_AUTHORS, _ANSWERS = "questions.json", "subset_answers.json"
_EGOSCHEMA = Release(
    repository="lmms-lab/egoschema",
    licence="research only, by the terms of Ego4D",
    annotations=("Subset/test-*.parquet", "GENERATION/test-*.parquet"),
    videos=("videos_chunked_*.zip",),
)


def egoschema_letter(reply: str, question: Question) -> str:
    """The letter that EgoSchema's task reads, or "": of several the one whose last place is first.

    A space or a full stop behind a capital is enough: "ABC " is C.
    """
    return mmmu_letter(reply, lettered(question.choices), _EGOSCHEMA_FORMS, earliest=True)


def score_egoschema(reply: str, question: Question) -> float | None:
    """1 if that letter is right, and what a guess is worth where there is none."""
    return guess_score(egoschema_letter(reply, question), question)


def egoschema_metrics(record: annotated.Record, reply: str) -> dict[str, Any]:
    """The metrics of EgoSchema's tasks; -1 where lmms-eval would guess."""
    index = LETTERS.find(egoschema_letter(reply, record.question) or "?")
    return {
        "submission": {record.video_id: index},
        "score": {"pred": index, "ground_truth": annotated.written_answer(record)},
    }


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
        **protocol.of_lmms_eval(EGOSCHEMA, score_egoschema),
        **protocol.in_versions("lmms_eval_aria", ARIA, score_egoschema),
    }
    lmms_eval_samples = annotated.LmmsEvalSamples(
        lambda record: "egoschema_subset" if annotated.right_letter(record) else "egoschema",
        egoschema_metrics,
        target=annotated.written_answer,
        key_in=annotated.first_key_of("submission"),
    )
    releases = (_EGOSCHEMA, replace(_EGOSCHEMA, repository="lmms-eval/egoschema"))

    def _rows(self, path: Path) -> list[tables.Row]:
        rows = super()._rows(path)
        if path.name != _AUTHORS or self.split in self.hidden_splits:
            return rows
        answers = tables.read_json(self._find_annotations((_ANSWERS,)))
        known = [row for row in rows if row.get("q_uid") in answers]
        return [{**row, "answer": answers[row["q_uid"]]} for row in known]

    def _id(self, row: tables.Row, video: str, number: int) -> str:
        return video


# Without a request for a letter.
NEXTQA = protocol.PromptTemplate("{question}\n{options}")
OPEN = protocol.PromptTemplate("{question}\nAnswer a question using a short phrase or sentence.")
_NEXTQA_FORMS = {"({})": "({})", "{} ": " {} ", "{}.": " {} "}
KINDS = {"C": "causal", "T": "temporal", "D": "descriptive"}
_OPEN = replace(protocol.PLAIN, render=OPEN)
_NEXTQA = Release(
    repository="lmms-lab/NExTQA",
    licence="MIT for the questions; the videos keep the terms of YFCC-100M",
    annotations=("MC/test-*.parquet",),
    videos=("videos.zip", "NExTVideo*.zip"),
)


def score_nextqa(reply: str, question: Question) -> float | None:
    """1 if the letter that NExT-QA's task reads is right; a guess's worth where there is none.

    "(B)" comes before "B " and "B."; of several the last one counts, "A B." is B.
    """
    return guess_score(mmmu_letter(reply, question.choices, _NEXTQA_FORMS), question)


def nextqa_metrics(record: annotated.Record, reply: str) -> dict[str, Any]:
    """The metric of NExT-QA's task; where lmms-eval would guess, the reply is wrong."""
    return {"exact_match": score_nextqa(reply, record.question) == 1.0}


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
    protocols: ClassVar = protocol.of_lmms_eval(
        NEXTQA, score_nextqa, max_new_tokens=protocol.PLAIN.max_new_tokens
    )
    lmms_eval_samples: ClassVar = annotated.LmmsEvalSamples(
        "nextqa_mc_test", nextqa_metrics, target=annotated.written_answer
    )
    releases: ClassVar[Sequence[Release]] = (
        _NEXTQA,
        replace(_NEXTQA, repository="lmms-eval/NExTQA"),
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
        **protocol.unscored("lmms_eval", _OPEN),
        **protocol.unscored("vlmevalkit", _OPEN),
    }
    # Without its metric, WUPS. The file's name is that of the split, which lmms-eval calls "val".
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

    def _asked(self, row: tables.Row, question_id: str) -> Question:
        """The answer is one of the right ones, the second annotator's another if there is one."""
        other = row.get("additional_ref_answer")
        right = (tables.answer_text_of(row), *([] if tables.is_missing(other) else [str(other)]))
        text = tables.text_of(row, "question").strip()
        return Question(question_id, text, groups=self._groups(row), accepted=right)


_TOMATO = (
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

_TOMATO_FILES = (
    *("count", "direction", "rotation", "shape&trend", "velocity&frequency", "visual_cues"),
)


def render_tomato(question: Question) -> Prompt:
    """The options stand in the prompt as Python writes a dictionary of them, by letter."""
    options = dict(zip(LETTERS, question.choices, strict=False))
    before, between, behind = _TOMATO
    return Prompt("", f"{before}{question.text}{between}{options}{behind}")


def score_tomato(reply: str, question: Question) -> float | None:
    """1 if the letter that TOMATO's task reads is right; A where there is none.

    A capital anywhere counts, in a word, too: "Clockwise" is C. Of several the last in brackets
    counts, or without brackets the first in the alphabet.
    """
    letter = mmmu_letter(reply, question.choices, {"{}": "({})"}) or "A"
    return letter_score(lambda _: letter, reply, question)


def tomato_metrics(record: annotated.Record, reply: str) -> dict[str, Any]:
    """The metric of TOMATO's task."""
    question = record.question
    stated = {"question_id": str(record.row["id"]), "score": score_tomato(reply, question)}
    return {"tomato_score": {**stated, **question.groups}}


class TOMATOBenchmark(annotated.AnnotatedBenchmark):
    """TOMATO from lmms-eval's table or the authors' six JSON files."""

    name = "tomato"
    title = "TOMATO"
    layout = "data/test-*.parquet or data/count.json and five others, and videos/<type>/<key>.mp4"
    # The hub's table writes a kind of reasoning without the "&" of the authors' file.
    task_files: ClassVar = {stem.replace("&", "_"): f"{stem}.json" for stem in _TOMATO_FILES}
    task_folders = ("data", ".")
    annotations = ("data/test-*.parquet", "test-*.parquet", "*/test-*.parquet")
    folders = (".", "videos", "TOMATO")
    video_columns = ("video_path",)
    answer_form = "index"
    splits: ClassVar = {"test": 1484}
    protocols: ClassVar = protocol.of_lmms_eval(render_tomato, score_tomato, max_new_tokens=1024)
    lmms_eval_samples = annotated.LmmsEvalSamples(
        "tomato",
        tomato_metrics,
        target=annotated.written_answer,
        key_in=annotated.fields_of_metric("tomato_score", "reason_type", "question_id"),
        by_doc_id=False,
    )
    releases = (
        Release(
            repository="lmms-eval/TOMATO",
            licence="CC-BY-SA 4.0 for the questions; research only for the videos",
        ),
    )

    def _rows_of(self, content: Any) -> list[tables.Row]:
        if isinstance(content, list):
            return content
        return [
            {
                "id": number,
                "video_path": f"videos/{own.get('demonstration_type')}/{own.get('key')}.mp4",
                **own,
            }
            for number, own in content.items()
        ]

    def _id(self, row: tables.Row, video: str, number: int) -> str:
        return f"{self._groups(row)['reason_type']}-{tables.text_of(row, 'id')}"

    def _groups(self, row: tables.Row) -> dict[str, str]:
        return {
            "reason_type": tables.text_of(row, "reason_type", "task_type"),
            "demonstration_type": tables.text_of(row, "demonstration_type"),
        }
