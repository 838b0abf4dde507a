"""What rows of one release mean: ids, options, groups and bounds, and what is odd about them."""

from collections import Counter

import pytest
from releases import (
    CHARADES_ROWS,
    EVERY,
    LONGVIDEOBENCH_ROWS,
    MLVU_ROWS,
    OPTIONS,
    VIDEOMME_V2_ROWS,
    asked,
    is_captioning,
    load,
    mlvu_release,
    mvbench_cut,
    mvbench_main,
    mvbench_vlmevalkit,
    touch,
    videomme_v2_release,
    videomme_vlmevalkit,
    write_json,
)

from tango_core.benchmarks.public.mvbench import ALL_TASKS

IDS = {
    "videomme_release": ["001-1", "001-2", "002-1", "002-2"],
    "videomme_vlmevalkit": ["aAaAaAaAaA0-1", "aAaAaAaAaA0-2", "-b_B-b_B-b1-1", "-b_B-b_B-b1-2"],
    "longvideobench_release": ["long-_1_0", "long-_1_1", "short_2_0"],
    "lvbench_authors": ["0", "1", "2"],
    "lvbench_release": ["Cm73ma6Ibcs-1", "Cm73ma6Ibcs-2", "-a.b-c_d-e1-1"],
    "charades_text": ["3MSZA-1", "3MSZA-2", "3MSZA-3", "00HFP-1", "XXABC-1"],
    "videomme_v2_vlmevalkit": [
        f"{video}-{n}" for video in ("001", "002", "700") for n in range(1, 5)
    ],
    "tempcompass_vlmevalkit": [
        *("multi-choice/101/action/1", "multi-choice/101/order/1"),
        *("caption_matching/101/action/1", "yes_no/101/action/1", "yes_no/101/action/2"),
        *("multi-choice/102_reverse/direction/1", "caption_matching/102_reverse/speed/1"),
        *("captioning/102_reverse/attribute_change/1", "yes_no/102_reverse/order/1"),
    ],
}


@pytest.mark.parametrize(("name", "write"), [p for p in EVERY if p.id in IDS])
def test_ids_are_the_releases_where_it_has_them(name, write, tmp_path):
    assert [question.id for question in asked(load(name, write(tmp_path)))] == IDS[write.__name__]


def test_videomme_groups_the_questions_of_a_video(tmp_path):
    items = list(load("videomme", videomme_vlmevalkit(tmp_path)).items())
    assert [(item.video_id, len(item.questions)) for item in items] == [
        ("aAaAaAaAaA0", 2),
        ("-b_B-b_B-b1", 2),
    ]
    question = items[1].questions[0]
    assert question.choices == ("One.", "Two.", "Three.", "I can't tell.")
    assert question.groups == {
        "duration": "long",
        "domain": "Knowledge",
        "sub_category": "Geography",
        "task_type": "OCR Problems",
    }


def test_longvideobench_hidden_answers_are_unknown(tmp_path):
    rows = [{k: v for k, v in row.items() if k != "correct_choice"} for row in LONGVIDEOBENCH_ROWS]
    write_json(tmp_path / "lvb_test_wo_gt.json", rows)
    assert {q.answer for q in asked(load("longvideobench", tmp_path, split="test_wo_gt"))} == {None}
    with pytest.raises(FileNotFoundError, match=r"lvb_val\.json"):
        load("longvideobench", tmp_path)


@pytest.mark.parametrize("write", [mvbench_main, mvbench_vlmevalkit])
def test_mvbench_bounds_make_clips_of_shared_files(write, tmp_path):
    touch(tmp_path, "video/star/Charades_v1_480/shared.mp4")
    benchmark = load("mvbench", write(tmp_path))
    items = [item for item in benchmark.items() if item.path.endswith("shared.mp4")]
    assert [(item.clip, len(item.questions)) for item in items] == [
        ((0.0, 1.25), 3),  # three tasks ask about the same part of the same file
        ((1.5, 2.75), 3),
    ]
    assert items[1].video_id == "star/Charades_v1_480/shared#1.5-2.75"
    bounded = {r.question.groups["task"] for r in benchmark.records() if r.clip is not None}
    assert bounded == {task.name for task in ALL_TASKS if task.bounded}


def test_mvbench_clips_that_are_cut_have_no_bounds(tmp_path):
    """Nor where a JSON file per task names some, as in the branch `video` that lmms-eval reads."""
    assert {item.clip for item in load("mvbench", mvbench_cut(tmp_path / "cut")).items()} == {None}
    touch(tmp_path, "mvbench_video/star/Charades_segment/shared.mp4")
    mvbench_main(tmp_path / "mvbench_video")
    items = list(load("mvbench", tmp_path).items())
    assert [item.clip for item in items if item.path.endswith("shared.mp4")] == [None]
    assert {item.clip for item in items if "sta/" in item.path} == {None}


@pytest.mark.parametrize("folder", ["MLVU/json", "json", "."])
def test_mlvu_reads_the_seven_tasks(folder, tmp_path, caplog):
    touch(tmp_path, "MLVU/video/1_plotQA/movie_1.mp4")
    benchmark = load("mlvu", mlvu_release(tmp_path, folder), split="dev")
    tasks = Counter(question.groups["task"] for question in asked(benchmark))
    assert tasks == {stem[2:]: 2 if stem == "1_plotQA" else 1 for stem in MLVU_ROWS}
    assert "7_topic_reasoning.json, row 1: question and answer are empty; skipped" in caplog.text
    assert next(benchmark.items()).video_id == "1_plotQA/movie_1"


def test_mlvu_oddities_of_the_release_are_kept(tmp_path, caplog):
    records = {r.question.id: r for r in load("mlvu", mlvu_release(tmp_path)).records()}
    # Of two equal options VLMEvalKit's: the last.
    assert [records[name].question.answer for name in ("plotQA-1", "needle-0", "ego-0")] == [
        2,
        None,
        2,
    ]
    assert "the answer 'A flying dog' is none of the options; not scored" in caplog.text
    assert records["ego-0"].question.choices[0] == "Shelf "
    assert records["topic_reasoning-1"].index == 8


@pytest.mark.parametrize(("name", "write"), [p for p in EVERY if p.values[0] == "tempcompass"])
def test_tempcompass_forms_options_and_numbers(name, write, tmp_path):
    benchmark = load(name, write(tmp_path))
    found = {one.id: one for one in asked(benchmark)}
    assert found["multi-choice/101/order/1"].choices == ("a run", "a jump", "Both at once")
    assert found["caption_matching/101/action/1"].choices == ("A man runs.", "A man sits.")
    assert found["yes_no/101/action/2"].answer == 1
    (caption,) = filter(is_captioning, found.values())
    assert (caption.choices, caption.answer, caption.accepted) == ((), None, ())
    # Rows are numbered as each harness counts them.
    assert [record.index for record in benchmark.records()] == list(range(9))
    assert [record.number for record in benchmark.records()] == [0, 1, 2, 0, 1, 0, 0, 1, 2]


@pytest.mark.parametrize(("name", "write"), [p for p in EVERY if p.values[0] == "videomme_v2"])
def test_videomme_v2_level_and_heads_are_those_of_the_last_question(name, write, tmp_path):
    items = list(load(name, write(tmp_path)).items(2))
    assert [(item.video_id, len(item.questions)) for item in items] == [("001", 4), ("002", 4)]
    for question in items[0].questions:
        groups = dict(question.groups)
        assert groups.pop("group_position") == question.id[-1]
        assert float(groups.pop("level")) == 3
        assert groups == {
            "group_type": "logic",
            "group_structure": "[1,[2,3],4]",
            "second_head": "Order",
            "third_head": "Order of things",
        }


def test_videomme_v2_options_may_hold_lines_that_begin_like_options(tmp_path):
    rows = [dict(row) for row in VIDEOMME_V2_ROWS]
    rows[0]["options"] = OPTIONS.replace("A book.", "A book:\nA. Tale")
    (question, *_) = asked(load("videomme_v2", videomme_v2_release(tmp_path, rows)))
    assert question.choices[2] == "A book:\nA. Tale"


@pytest.mark.parametrize(("name", "write"), [p for p in EVERY if p.values[0] == "charades_sta"])
def test_charades_sta_counts_the_last_of_equal_rows(name, write, tmp_path):
    benchmark = load(name, write(tmp_path), protocol="lmms_eval")
    found = [(record.video_id, record.question) for record in benchmark.records()]
    assert [(video, *one.span, one.text) for video, one in found] == list(CHARADES_ROWS)
    scores = [benchmark.protocol.harness_score("24.3 - 30.4", question) for _, question in found]
    assert scores == [1.0, None, 0.0, 0.0, 1.0]


def test_charades_sta_times_in_the_wrong_order_are_swapped(tmp_path):
    (tmp_path / "charades_sta_test.txt").write_text("A 9 2.5##person sits.\n")
    (record,) = load("charades_sta", tmp_path).records()
    assert record.question.span == (2.5, 9)
