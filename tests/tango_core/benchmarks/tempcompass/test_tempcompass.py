"""TempCompass: every layout, prompts byte for byte, the harnesses' rules, and our own reading."""

import json
import shutil

import pytest
from golden_files import GOLDEN_DIR
from newer_releases import (
    TEMPCOMPASS_ROWS,
    is_captioning,
    tempcompass_authors,
    tempcompass_release,
    tempcompass_vlmevalkit,
)
from releases import asked, load, touch, write_json

from tango_core.benchmarks import tempcompass as rules
from tango_core.benchmarks.base import Defect
from tango_core.benchmarks.tempcompass import TASKS, YES_OR_NO, TempCompassBenchmark, options_in
from tango_core.types import Question

GOLDEN = json.loads((GOLDEN_DIR / "prompts_tempcompass_lvbench.json").read_text(encoding="utf-8"))
LAYOUTS = [tempcompass_release, tempcompass_authors, tempcompass_vlmevalkit]
PROTOCOLS = TempCompassBenchmark.protocols
MATCHING = "Which fits?\nOption 1: A man runs.\nOption 2: A man sits."
NAMED = "Which fits?\nSentence A: A man runs.\nSentence B: A man sits."
CHOICE = "Which?\nA. dunking a basketball\nB. dribbling a basketball\nC. passing a basketball"


def question(task, text, answer):
    """A question of one form with its right answer as the release writes it."""
    if task == "yes_no":
        return Question("q", text, YES_OR_NO, YES_OR_NO.index(answer), {"task": task})
    options = options_in(text, task)
    lines = [option.line for option in options]
    choices = tuple(option.text for option in options)
    return Question("q", text, choices, lines.index(answer), {"task": task})


@pytest.mark.parametrize("write", LAYOUTS)
class TestLayouts:
    def test_all_forms_ask_about_the_videos_together(self, write, tmp_path):
        touch(tmp_path, "videos/101.mp4")
        items = list(load("tempcompass", write(tmp_path)).items())
        assert [(item.video_id, len(item.questions)) for item in items] == [
            ("101", 5),
            ("102_reverse", 4),
        ]
        assert items[0].path == str(tmp_path / "videos" / "101.mp4")
        forms = [one.groups["task"] for item in items for one in item.questions]
        assert {task: forms.count(task) for task in TASKS} == {
            task: len(rows) for task, rows in TEMPCOMPASS_ROWS.items()
        }

    def test_ids_options_and_answers_are_the_same(self, write, tmp_path):
        found = {one.id: one for one in asked(load("tempcompass", write(tmp_path)))}
        odd = found["multi-choice/101/order/1"]
        assert (odd.choices, odd.answer) == (("a run", "a jump", "Both at once"), 2)
        away = found["multi-choice/102_reverse/direction/1"]
        assert (away.choices, away.answer) == (("left", "right", "away"), 0)
        first = found["caption_matching/101/action/1"]
        assert (first.choices, first.answer) == (("A man runs.", "A man sits."), 1)
        assert found["yes_no/101/action/2"].answer == 1
        (caption,) = [one for one in found.values() if is_captioning(one)]
        assert (caption.choices, caption.answer, caption.accepted) == ((), None, ())
        assert caption.id == "captioning/102_reverse/attribute_change/1"
        texts = {row["question"] for rows in TEMPCOMPASS_ROWS.values() for row in rows}
        assert {one.text for one in found.values()} == texts

    def test_rows_are_numbered_as_each_harness_counts_them(self, write, tmp_path):
        records = load("tempcompass", write(tmp_path)).records()
        assert [record.index for record in records] == list(range(9))
        assert [record.number for record in records] == [0, 1, 2, 0, 1, 0, 0, 1, 2]


class TestFiles:
    def test_a_form_whose_file_is_absent_is_not_asked(self, tmp_path):
        tempcompass_release(tmp_path)
        shutil.rmtree(tmp_path / "captioning")
        assert len(asked(load("tempcompass", tmp_path))) == 8

    def test_below_hf_home_as_lmms_eval_leaves_it(self, tmp_path):
        tempcompass_release(tmp_path / "hub/datasets--lmms-lab--TempCompass/snapshots/a")
        touch(tmp_path, "tempcompass/videos/101.mp4")
        expected = str(tmp_path / "tempcompass" / "videos" / "101.mp4")
        assert next(load("tempcompass", tmp_path).items()).path == expected

    @pytest.mark.parametrize("content", [{"101": ["action"]}, {"101": {"action": "Does he?"}}])
    def test_a_file_of_another_form_is_named(self, content, tmp_path):
        write_json(tmp_path / "yes_no.json", content)
        with pytest.raises(ValueError, match=r"yes_no\.json: must hold .*; download") as error:
            load("tempcompass", tmp_path)
        assert "\n" not in str(error.value)

    def test_malformed_rows_are_named_and_odd_ones_only_noted(self, tmp_path):
        good = {"video_id": "1", "dim": "action", "question": CHOICE}
        rows = [
            {**good, "answer": "B. dribbling a basketball"},
            {**good, "answer": "D. flying"},
            {**good, "answer": "B", "question": "Which?\nred or blue"},
            {**good, "answer": "B", "dim": "colour"},
        ]
        write_json(tmp_path / "multi-choice.json", rows)
        write_json(tmp_path / "yes_no.json", [{**good, "question": "Is it?", "answer": "maybe"}])
        entries = list(load("tempcompass", tmp_path).entries())
        assert entries[1].question.answer is None
        assert entries[1].notes == ("the answer 'D. flying' is none of the options; not scored",)
        assert [entry.problem for entry in entries if isinstance(entry, Defect)] == [
            "line 'red or blue' of the question is no option",
            "unknown dim 'colour'; known are action, direction, speed, order, attribute_change",
            "answer 'maybe' must be yes or no",
        ]


@pytest.fixture(scope="module")
def golden_questions(tmp_path_factory):
    """The questions of the golden rows by their texts."""
    root = tmp_path_factory.mktemp("golden")
    for task in TASKS:
        rows = [case["row"] for case in GOLDEN["tempcompass"] if case["task"] == task]
        assert len(rows) == 4
        write_json(root / f"{task}.json", rows)
    return {one.text: one for one in asked(load("tempcompass", root))}


@pytest.mark.parametrize("protocol", ["vlmevalkit", "lmms_eval", "lmms_eval_plm"])
def test_prompts_are_the_harnesses_byte_for_byte(golden_questions, protocol):
    for case in GOLDEN["tempcompass"]:
        expected = case[protocol]
        if not isinstance(expected, str):
            assert expected[0] == "V"
            expected = "".join(expected[1:])
        prompt = PROTOCOLS[protocol].render(golden_questions[case["row"]["question"]])
        assert (prompt.before, prompt.after) == ("", expected)


@pytest.mark.parametrize("task", ["multi-choice", "caption_matching", "yes_no"])
def test_rules_without_a_judge_are_the_harnesses(task):
    for case in GOLDEN["scores"][task]:
        text = case.get("question", CHOICE if task == "multi-choice" else "Is it?")
        one = question(task, text, case["answer"])
        reply = case["reply"]
        assert rules.rated(reply, one) == case["lmms_eval_rule"][0], reply
        for name in ("vlmevalkit", "lmms_eval"):
            assert PROTOCOLS[name].harness_score(reply, one) == case["vlmevalkit_no_judge"][0]


@pytest.mark.parametrize(
    ("reply", "choice"),
    [
        ("yes", 0),
        ("No.", 1),
        ("**Yes**", 0),
        ("Yes, he does.", 0),
        ("No, it is not.", 1),
        ("Yes he does", 0),
        ("The answer is no.", 1),
        ("Answer: yes", 0),
        ("No\nBecause he sits.", 1),
        ("No because he sits.", 1),
        ("Yes - he runs", 0),
        ("Yes, no one else runs", 0),
        ("No (he sits)", 1),
        ("No based on the video", 1),
        ("No-one runs", None),
        ("Yes, no", None),
        ("No. Yes.", None),
        ("Not sure", None),
        ("None", None),
        ("Nobody knows", None),
        ("No idea", None),
        ("No one runs here", None),
        ("Yes and no", None),
        ("Yes or no", None),
        ("It depends", None),
        ("Yes, or rather: the answer is no", None),
        ("", None),
    ],
)
def test_our_reading_of_yes_and_no(reply, choice):
    one = question("yes_no", "Does he?", "yes")
    for protocol in PROTOCOLS.values():
        assert protocol.read_choice(reply, one) == choice


@pytest.mark.parametrize(
    ("text", "reply", "choice"),
    [
        (MATCHING, "Option 2", 1),
        (MATCHING, "2", 1),
        (MATCHING, "(1)", 0),
        (MATCHING, "2. A man sits.", 1),
        (MATCHING, "Option 1: A man runs.", 0),
        (MATCHING, "A man sits", 1),
        (MATCHING, "The best is option 2.", 1),
        (MATCHING, "B", None),
        (MATCHING, "Option 3", None),
        (MATCHING, "Option 1: A man sits.", None),
        (MATCHING, "Option 1 or Option 2", None),
        (MATCHING, "A man runs. A man sits.", None),
        (MATCHING, "I think so", None),
        (MATCHING, "", None),
        (NAMED, "A", 0),
        (NAMED, "Sentence B", 1),
        (NAMED, "B) A man sits.", 1),
        (NAMED, "1", None),
        (NAMED, "A man", None),
    ],
)
def test_our_reading_of_a_matched_caption(text, reply, choice):
    one = question("caption_matching", text, text.split("\n")[1])
    for protocol in PROTOCOLS.values():
        assert protocol.read_choice(reply, one) == choice


@pytest.mark.parametrize(
    ("reply", "choice"),
    [
        ("A", 0),
        ("(C)", 2),
        (" B\n", 1),
        ("Answer: A", 0),
        ("passing a basketball", 2),
        ("A or B", None),
        ("D", None),
    ],
)
def test_our_reading_of_a_letter_is_the_general_one(reply, choice):
    one = question("multi-choice", CHOICE, "A. dunking a basketball")
    assert PROTOCOLS["vlmevalkit"].read_choice(reply, one) == choice


def test_captions_are_recorded_and_have_no_score_anywhere(tmp_path):
    (one,) = filter(is_captioning, asked(load("tempcompass", tempcompass_release(tmp_path))))
    for protocol in PROTOCOLS.values():
        assert protocol.read_choice("B. sits", one) is None
        assert protocol.harness_score("B. sits", one) is None


def test_a_failure_is_wrong_in_either_harness(golden_questions):
    for protocol in PROTOCOLS.values():
        for one in golden_questions.values():
            score = protocol.harness_score(protocol.failed_reply, one)
            assert score is None if is_captioning(one) else score == 0
