"""Video-MME-v2: layouts and groups; prompts and letters against the harnesses'."""

import json

import pytest
from golden_files import GOLDEN_DIR
from releases import asked, load
from scored_releases import (
    EIGHT,
    OPTIONS,
    VIDEOMME_V2_ROWS,
    videomme_v2_lmms_eval,
    videomme_v2_release,
    videomme_v2_vlmevalkit,
)

from tango_core.benchmarks.base import Defect
from tango_core.benchmarks.videomme_v2 import VideoMMEV2Benchmark, harness_letter
from tango_core.types import Question

GOLDEN = json.loads((GOLDEN_DIR / "videomme_v2_charades_sta.json").read_text())
LAYOUTS = [videomme_v2_release, videomme_v2_vlmevalkit, videomme_v2_lmms_eval]


@pytest.mark.parametrize("write", LAYOUTS)
class TestLayouts:
    def test_all_layouts_have_the_same_questions(self, write, tmp_path):
        found = asked(load("videomme_v2", write(tmp_path / "one")))
        same = asked(load("videomme_v2", videomme_v2_release(tmp_path / "other")))
        assert found == same
        assert [question.id for question in found[:5]] == [
            "001-1", "001-2", "001-3", "001-4", "002-1",
        ]  # fmt: skip
        assert all(question.choices == EIGHT for question in found)

    def test_a_limit_takes_whole_groups(self, write, tmp_path):
        items = list(load("videomme_v2", write(tmp_path)).items(2))
        assert [(item.video_id, len(item.questions)) for item in items] == [("001", 4), ("002", 4)]

    def test_level_and_heads_are_those_of_the_last_question(self, write, tmp_path):
        for question in asked(load("videomme_v2", write(tmp_path)))[:4]:
            groups = dict(question.groups)
            assert groups.pop("group_position") == question.id[-1]
            assert groups == {
                "group_type": "logic", "group_structure": "[1,[2,3],4]", "level": groups["level"],
                "second_head": "Order", "third_head": "Order of things",
            }  # fmt: skip
            assert float(groups["level"]) == 3


class TestVideos:
    @pytest.mark.parametrize("folder", ["video", "videos", "data", "."])
    def test_are_found_in_every_layout(self, tmp_path, folder):
        root = videomme_v2_release(tmp_path)
        (root / folder).mkdir(exist_ok=True)
        (root / folder / "001.mp4").touch()
        (item, *_) = load("videomme_v2", root).items()
        assert item.path == str((root / folder / "001.mp4").resolve())

    def test_lmms_evals_are_found(self, tmp_path):
        root = videomme_v2_lmms_eval(tmp_path)
        (root / "data" / "001.mp4").touch()
        (item, *_) = load("videomme_v2", root).items()
        assert item.path == str(root / "data" / "001.mp4")


@pytest.mark.parametrize(
    ("changed", "problem"),
    [
        ({"group_type": "riddle"}, "differ in group_type or group_structure"),
        ({"group_structure": "[4, 3, 2, 1]"}, "differ in group_type or group_structure"),
        ({"question_id": "001-2"}, "question 2 of the video occurs twice"),
        ({"question_id": "001-5"}, "question_id must end in 1 to 4"),
        ({"answer": "J"}, "answer 'J' is not a letter of its 8 options"),
        ({"options": "red, blue"}, "options must be lines"),
        ({"video_id": None}, "no video_id or video"),
    ],
)
def test_malformed_rows_are_named(tmp_path, changed, problem):
    rows = [{**VIDEOMME_V2_ROWS[0], **changed}, *VIDEOMME_V2_ROWS[1:]]
    benchmark = load("videomme_v2", videomme_v2_release(tmp_path, rows))
    defects = [entry for entry in benchmark.entries() if isinstance(entry, Defect)]
    assert any(problem in defect.problem for defect in defects), defects


def test_incomplete_groups_are_noted(tmp_path):
    benchmark = load("videomme_v2", videomme_v2_release(tmp_path, VIDEOMME_V2_ROWS[:6]))
    notes = {record.video_id: record.notes for record in benchmark.records()}
    assert notes["002"] == ()
    assert notes["001"] == ("2 of 4 questions of the group; it has no group score",)


def test_an_option_may_hold_lines_that_begin_like_options(tmp_path):
    rows = [dict(row) for row in VIDEOMME_V2_ROWS]
    rows[0]["options"] = OPTIONS.replace("A book.", "A book:\nA. Tale")
    (question, *_) = asked(load("videomme_v2", videomme_v2_release(tmp_path, rows)))
    assert question.choices[2] == "A book:\nA. Tale"


@pytest.mark.parametrize(
    ("protocol", "golden"),
    [
        ("vlmevalkit", "vlmevalkit"),
        ("vlmevalkit_reasoning", "vlmevalkit_reasoning"),
        ("lmms_eval", "lmms_eval"),
        ("lmms_eval@0.7.3", "lmms_eval"),
        ("lmms_eval_qwen3_vl", "lmms_eval_qwen3_vl"),
        ("lmms_eval_reasoning", "lmms_eval_reasoning"),
    ],
)
def test_prompts_are_the_harnesses_byte_for_byte(tmp_path, protocol, golden):
    about = GOLDEN["videomme_v2"]
    rows = [about["row"], *({**about["row"], "question_id": f"001-{n}"} for n in (2, 3, 4))]
    benchmark = load("videomme_v2", videomme_v2_release(tmp_path, rows), protocol=protocol)
    (question, *_) = asked(benchmark)
    prompt, parts = benchmark.protocol.render(question), about[golden]
    expected = parts if isinstance(parts, str) else "".join(part for part in parts if part != "V")
    assert (prompt.before, prompt.after) == ("", expected)


@pytest.mark.parametrize("case", GOLDEN["scores"]["letter_A_to_H"], ids=lambda case: case["reply"])
def test_letters_are_those_of_the_harnesses(case):
    assert harness_letter(case["reply"]) == case["vlmevalkit"] == case["lmms_eval"]


def test_our_reading_is_strict_where_theirs_is_not(tmp_path):
    benchmark = load("videomme_v2", videomme_v2_release(tmp_path))
    question = Question("q", "What?", EIGHT, 7)
    protocol = benchmark.protocol
    assert protocol.harness_score("He holds a book", question) == 1
    assert protocol.read_choice("He holds a book", question) != 7
    assert protocol.read_choice("Final Answer: C", question) == 2
    for own in benchmark.protocols.values():
        assert own.harness_score(own.failed_reply, question) == 0


@pytest.mark.parametrize("name", ["vlmevalkit_reasoning", "lmms_eval_reasoning"])
@pytest.mark.parametrize(
    "reasoning",
    [
        "Option A shows a dog, but the animal meows.\n",
        "First (A) and then (B) are seen.\n\n",
        "<think>The answer is A. No.</think>\n",
        "A. dog: not seen\nB. cat: not seen\n",
    ],
)
def test_the_final_answer_counts_whatever_the_reasoning_names(name, reasoning):
    protocol = VideoMMEV2Benchmark.protocols[name]
    question = Question("q", "Which?", ("dog", "cat", "horse", "cow"), 2)
    for line in ("Final Answer: C", "**Final Answer: C**", "Final Answer: (C)"):
        assert protocol.read_choice(reasoning + line, question) == 2
        assert protocol.harness_score(line, question) == 1.0
