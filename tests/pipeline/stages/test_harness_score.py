"""What a harness would have counted is recorded with every answer, also where nothing was said."""

from __future__ import annotations

import pytest
from releases import PROTOCOLS

from pipeline.clips import clip_of
from pipeline.plan import plan_methods
from pipeline.stages.answer import AnswerQuestions
from tango_core.compressors import build_method
from tango_core.models import describe_model
from tango_core.types import Question, VideoItem

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
