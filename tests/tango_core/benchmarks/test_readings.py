"""Replies to the forms of TempCompass, LVBench, Video-MME-v2 and Charades-STA, by all readers."""

import json

import pytest
from golden_files import GOLDEN_DIR

from tango_core.benchmarks import benchmark_class
from tango_core.benchmarks.public.tempcompass import YES_OR_NO, options_in, rated
from tango_core.benchmarks.public.temporal_grounding import charades_span, timelens_spans
from tango_core.benchmarks.public.videomme import harness_letter
from tango_core.benchmarks.scoring.judge import judge, read_span, span_iou
from tango_core.types import Question

NEWER = json.loads((GOLDEN_DIR / "prompts_tempcompass_lvbench.json").read_text(encoding="utf-8"))
SCORED = json.loads((GOLDEN_DIR / "videomme_v2_charades_sta.json").read_text())
TEMPCOMPASS = benchmark_class("tempcompass").protocols
MATCHING = "Which fits?\nOption 1: A man runs.\nOption 2: A man sits."
NAMED = "Which fits?\nSentence A: A man runs.\nSentence B: A man sits."
CHOICE = "Which?\nA. dunking a basketball\nB. dribbling a basketball\nC. passing a basketball"


def question(task, text, answer):
    """A question of one form of TempCompass with its right answer as the release writes it."""
    if task == "yes_no":
        return Question("q", text, YES_OR_NO, YES_OR_NO.index(answer), {"task": task})
    options = options_in(text, task)
    lines = [option.line for option in options]
    choices = tuple(option.text for option in options)
    return Question("q", text, choices, lines.index(answer), {"task": task})


@pytest.mark.parametrize("task", ["multi-choice", "caption_matching", "yes_no"])
def test_tempcompass_rules_without_a_judge_are_the_harnesses(task):
    for case in NEWER["scores"][task]:
        text = case.get("question", CHOICE if task == "multi-choice" else "Is it?")
        one = question(task, text, case["answer"])
        reply = case["reply"]
        assert rated(reply, one) == case["lmms_eval_rule"][0], reply
        for name in ("vlmevalkit", "lmms_eval"):
            assert TEMPCOMPASS[name].harness_score(reply, one) == case["vlmevalkit_no_judge"][0]


@pytest.mark.parametrize(
    ("task", "text", "replies"),
    [
        (
            "yes_no",
            "Does he?",
            {
                **dict.fromkeys(("yes", "**Yes**", "Yes, he does.", "Yes he does"), 0),
                **dict.fromkeys(("Answer: yes", "Yes - he runs", "Yes, no one else runs"), 0),
                **dict.fromkeys(("No.", "No, it is not.", "The answer is no."), 1),
                **dict.fromkeys(("No\nBecause he sits.", "No because he sits.", "No (he sits)"), 1),
                "No based on the video": 1,
                **dict.fromkeys(("No-one runs", "Yes, no", "No. Yes.", "Not sure", "None"), None),
                **dict.fromkeys(("Nobody knows", "No idea", "No one runs here", ""), None),
                **dict.fromkeys(("Yes and no", "Yes or no", "It depends"), None),
                "Yes, or rather: the answer is no": None,
            },
        ),
        (
            "caption_matching",
            MATCHING,
            {
                **dict.fromkeys(("(1)", "Option 1: A man runs."), 0),
                **dict.fromkeys(("Option 2", "2", "2. A man sits.", "A man sits"), 1),
                "The best is option 2.": 1,
                **dict.fromkeys(("B", "Option 3", "Option 1: A man sits.", "I think so", ""), None),
                **dict.fromkeys(("Option 1 or Option 2", "A man runs. A man sits."), None),
            },
        ),
        (
            "caption_matching",
            NAMED,
            {"A": 0, "Sentence B": 1, "B) A man sits.": 1, "1": None, "A man": None},
        ),
        (
            "multi-choice",
            CHOICE,
            {"A": 0, "Answer: A": 0, " B\n": 1, "(C)": 2, "passing a basketball": 2}
            | {"A or B": None, "D": None},
        ),
    ],
    ids=["yes_no", "options", "sentences", "letters"],
)
def test_our_reading_of_each_form_of_tempcompass(task, text, replies):
    one = question(task, text, "yes" if task == "yes_no" else text.split("\n")[1])
    for protocol in TEMPCOMPASS.values():
        assert {reply: protocol.read_choice(reply, one) for reply in replies} == replies


def test_captions_have_no_score_anywhere():
    caption = Question("q", "Describe it.", groups={"task": "captioning"})
    for protocol in TEMPCOMPASS.values():
        assert protocol.read_choice("B. sits", caption) is None
        assert protocol.harness_score("B. sits", caption) is None


def test_lvbench_s_score_is_lmms_evals_and_our_reading_also_knows_an_option_s_text():
    protocols, choices = benchmark_class("lvbench").protocols, ("1636", "1366", "1363", "1633")
    for case in NEWER["scores"]["lvbench_letter"]:
        for right, letter in enumerate("ABCD"):
            one = Question("q", "Which?", choices, right)
            expected = float(case["lmms_eval"] == letter)
            assert protocols["lmms_eval"].harness_score(case["reply"], one) == expected
    replies = {"1633": 3, "d": 3, "A or D": None, "(D) 1633": 3, "I see it": None}
    read = protocols["lmms_eval"].read_choice
    assert {reply: read(reply, one) for reply in replies} == replies


@pytest.mark.parametrize("case", SCORED["scores"]["letter_A_to_H"], ids=lambda case: case["reply"])
def test_letters_of_videomme_v2_are_those_of_the_harnesses(case):
    assert harness_letter(case["reply"]) == case["vlmevalkit"] == case["lmms_eval"]


# What our reader makes of the golden replies, where it is not what the harness reads.
OURS = {
    "24.3 seconds to 30.4 seconds": (24.3, 30.4),
    "Start time: 24.3, end time: 30.4": (24.3, 30.4),
    '{"start": 24.3, "end": 30.4}': (24.3, 30.4),
    "<24.3 seconds> to <30.4 seconds>": (24.3, 30.4),
    "1 - 2, 5 - 9": None,
}


@pytest.mark.parametrize("case", SCORED["scores"]["charades_times"], ids=lambda case: case["reply"])
def test_spans_are_those_of_the_harness_and_ours_know_more_forms(case):
    reply, found = case["reply"], charades_span(case["reply"])
    assert ([] if found is None else [list(found)]) == case["charades_sta"]
    assert list(map(list, timelens_spans(reply))) == case["timelens"]
    assert read_span(reply) == OURS.get(reply, found)


class TestIoU:
    @pytest.mark.parametrize("case", SCORED["scores"]["iou"])
    def test_is_the_harnesses(self, case):
        assert span_iou(case["a"], case["b"]) == pytest.approx(case["iou"])


@pytest.mark.parametrize(
    ("reply", "readable", "score", "correct"),
    [
        ("10 - 20", True, 1.0, True),
        ("10 - 30", True, 0.5, True),
        ("10 - 31", True, 10 / 21, False),
        ("no idea", False, 0.0, False),
        (None, False, 0.0, False),
    ],
)
def test_a_span_is_right_from_half_on(reply, readable, score, correct):
    found = judge(reply, Question("q", "When?", span=(10.0, 20.0)), lambda *_: None)
    assert (found.readable, found.score, found.correct) == (readable, pytest.approx(score), correct)
    assert found.answer_text == "10 to 20 s"
