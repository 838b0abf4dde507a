"""A clip that is in the caches in, an answer per question and method out."""

from __future__ import annotations

from dataclasses import replace

import pytest
from releases import PROTOCOLS

from pipeline.clips import ANSWER_QUESTIONS, COMPRESS_VIDEO, clip_of, questions_of
from pipeline.plan import plan_methods
from pipeline.rows import ANSWER, to_table
from pipeline.stages.answer import AnswerQuestions
from tango_core.compressors import build_method
from tango_core.models import describe_model
from tango_core.types import Question, VideoItem


@pytest.fixture
def encoded(one_clip):
    """The clip after the compress stage."""
    return one_clip.start(COMPRESS_VIDEO)(one_clip.decoded)


@pytest.fixture
def answer(one_clip):
    return one_clip.start(ANSWER_QUESTIONS)


def test_every_question_is_answered_with_every_method(one_clip, encoded, answer):
    result = answer(encoded)
    to_table(result.answers, ANSWER)
    questions = [question.id for question in questions_of(one_clip.row)]
    assert [(a.cell, a.question_id) for a in result.answers] == [
        (cell.name, question) for cell in one_clip.plan.methods for question in questions
    ]
    assert (result.num_misses, result.num_computed) == (2, 2)
    assert not result.has_failed


def test_a_failed_clip_is_a_failed_answer_per_question_and_method(one_clip, encoded, answer):
    result = answer(encoded.failed("encode_failed", "out of memory"))
    assert result.status == "encode_failed"
    assert len(result.answers) == 3 * len(questions_of(one_clip.row))
    assert {a.status for a in result.answers} == {"encode_failed"}
    assert {a.error for a in result.answers} == {"out of memory"}
    assert {a.prompt_tokens for a in result.answers} == {None}


def test_a_damaged_entry_is_removed_and_its_clip_planned_again(one_clip, encoded, answer):
    damaged, good = one_clip.plan.caches.values()
    path = f"{encoded.clip_key}.parquet"
    damaged.storage.write(path, damaged.storage.read(path)[:-40])
    result = answer(encoded)
    assert result.lost_entry
    assert {row.status for row in result.answers} == {"answer_failed"}
    assert "--resume computes it again" in result.answers[0].error
    assert damaged.keys() == set()
    assert good.keys() == {encoded.clip_key}


def test_answers_say_by_a_digest_what_was_shown(one_clip, encoded, answer):
    answers = answer(encoded).answers
    questions = len(questions_of(one_clip.row))
    assert len({row.frames_digest for row in answers}) == 1, "every method saw these frames"
    assert len({row.prompt_digest for row in answers}) == questions
    again = answer(replace(encoded, source_fingerprint="another file")).answers
    assert {row.frames_digest for row in again}.isdisjoint(r.frames_digest for r in answers)
    assert [row.prompt_digest for row in again] == [row.prompt_digest for row in answers]
    kept = {row.cell: row.kept_digest for row in answers}
    assert kept["uniform r=0.25"] != kept["full"] == kept["fastv r=0.75"], "from one token cache"
    assert [row.kept_digest for row in again] == [row.kept_digest for row in answers]


def test_a_damaged_clip_is_answered_under_its_own_status_and_leaves_nothing_in_the_caches(
    one_clip, answer
):
    damaged = replace(one_clip.decoded, damage=["frame 3 is damaged"], clip_key="0" * 20)
    row = one_clip.start(COMPRESS_VIDEO)(replace(damaged, missing=list(one_clip.plan.caches)[:1]))
    result = answer(row)
    assert not result.has_failed
    for given in result.answers:
        assert (given.status, given.error) == ("decode_damaged", "decode: frame 3 is damaged")
        assert given.prompt_tokens > 0
    assert all(cache.keys() == set() for cache in one_clip.plan.caches.values())


OPTIONS = ("red", "blue", "green", "pink")
KNOWN = Question("q0", "What colour?", OPTIONS, 1, {"task": "count"})
NO_ANSWER = Question("q1", "What colour?", OPTIONS, None, {"task": "count"})


@pytest.fixture(scope="module")
def stage(tmp_path_factory):
    """The embedded language model with every protocol of the harnesses."""
    spec = describe_model("tiny")
    root = str(tmp_path_factory.mktemp("cache"))
    cells, _, caches = plan_methods([("full", build_method("full"))], spec, root)
    names = ("videomme", "mvbench", "longvideobench", "mlvu")
    protocols = {
        f"{name}/{harness}": PROTOCOLS[name][harness]
        for name in names
        for harness in ("vlmevalkit", "lmms_eval")
    }
    return AnswerQuestions(spec, cells, caches, protocols)


@pytest.mark.parametrize(
    ("protocol", "expected"),
    [
        ("videomme/vlmevalkit", [0.0, None]),
        ("videomme/lmms_eval", [0.0, None]),
        ("mvbench/vlmevalkit", [0.0, 0.0]),
        ("mvbench/lmms_eval", [0.0, None]),
        ("longvideobench/vlmevalkit", [0.0, None]),
        ("longvideobench/lmms_eval", [0.25, None]),  # a random guess, whatever is written
        ("mlvu/vlmevalkit", [0.0, 0.0]),
        ("mlvu/lmms_eval", [0.0, 0.0]),  # its two questions without a right option are wrong
    ],
)
def test_a_failed_clip_is_wrong_by_the_rules_of_either_harness(stage, protocol, expected):
    item = VideoItem("v", "gone.mp4", None, (KNOWN, NO_ANSWER))
    row = clip_of(protocol, item, "", "").failed("decode_failed", "no such file")
    answers = stage(row).answers
    assert [answer.harness_score for answer in answers] == expected
    assert [answer.correct for answer in answers] == [False, None]
