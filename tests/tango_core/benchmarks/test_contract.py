"""What public benchmarks do in every layout, and what rows of one release mean."""

import json
import os
import pickle
from collections import Counter
from pathlib import Path

import pytest
import releases
import releases as first
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

from tango_core.benchmarks import benchmark_class, build_benchmark
from tango_core.benchmarks.base import Defect
from tango_core.benchmarks.protocols.protocol import is_failure
from tango_core.benchmarks.public.mvbench import ALL_TASKS
from tango_core.errors import UserError


def content(benchmark):
    """What is asked and what is right; a table of option columns drops an option "N/A"."""
    return {
        (
            one.text,
            one.span,
            None if one.answer is None else one.choices[one.answer],
            *(text for text in one.choices if text != "N/A"),
        )
        for one in releases.asked(benchmark)
    }


# Benchmarks that VLMEvalKit lacks, and two protocols that no harness scores.
UNSCORED = {(name, "vlmevalkit") for name in ("lvbench", "charades_sta", *first.RECORDED)}
UNSCORED |= {("nextqa_oe", "lmms_eval"), ("activitynet_captions", "lmms_eval_charades")}
# Here lmms-eval guesses whatever names no option.
GUESSING = ("longvideobench", "egoschema", "nextqa", "tomato")


@pytest.mark.parametrize(("name", "write"), releases.EVERY)
class TestEveryLayout:
    def test_every_question_and_every_clip_is_there_once(self, name, write, tmp_path):
        benchmark = releases.load(name, write(tmp_path))
        items, asked = list(benchmark.items()), releases.asked(benchmark)
        ids = [question.id for question in asked]
        assert len(ids) == len(set(ids)) == len(benchmark.records()) > 0
        assert len({item.video_id for item in items}) == len(items)
        assert len({(item.path, item.clip) for item in items}) == len(items)
        # Videos are not there: they are items all the same.
        assert all(item.path.startswith(str(tmp_path)) for item in items)

    def test_questions_are_those_of_the_first_layout(self, name, write, tmp_path):
        found = content(releases.load(name, write(tmp_path / "one")))
        same = content(releases.load(name, releases.LAYOUTS[name][0](tmp_path / "other")))
        # lmms-eval's table of MLVU lacks rows whose answer is no option.
        assert found < same if write is first.mlvu_lmms_eval else found == same

    def test_reading_twice_gives_the_same_and_a_limit_takes_whole_clips(
        self, name, write, tmp_path
    ):
        benchmark = releases.load(name, write(tmp_path))
        assert list(benchmark.entries()) == list(benchmark.entries())
        items = list(benchmark.items())
        assert list(benchmark.items(1)) == items[:1]
        assert list(benchmark.items(0)) == []
        with pytest.raises(ValueError, match="limit must be 0 or more"):
            next(benchmark.items(-1))

    def test_every_protocol_asks_reads_and_counts_a_failure_as_wrong(self, name, write, tmp_path):
        root = write(tmp_path)
        for own, protocol in benchmark_class(name).protocols.items():
            copy = pickle.loads(pickle.dumps(protocol))  # as it travels to other processes
            assert protocol.name == own
            for question in releases.asked(releases.load(name, root, protocol=own)):
                prompt = copy.render(question)
                assert prompt == protocol.render(question)
                assert question.text.split("\n")[0].strip() in prompt.after
                assert protocol.read_choice("A", question) in (0, None)
                if protocol.harness_score is None:
                    assert (name, own) in UNSCORED
                elif not (name in GUESSING and own.startswith("lmms_eval")):
                    assert not protocol.harness_score(protocol.failed_reply, question)
                    assert is_failure(protocol.failed_reply) or name == "motionbench"


@pytest.mark.parametrize("name", releases.LAYOUTS)
class TestMistakes:
    def test_roots_that_hold_no_release_end_in_one_line(self, name, tmp_path):
        with pytest.raises(ValueError, match=r"benchmark\.root is missing; set it to the folder"):
            build_benchmark(name)
        for root, message in (
            (tmp_path / "nothing", "is not a folder; .* expects there: "),
            (tmp_path, r"annotations not found under .*; expected there: "),
        ):
            with pytest.raises(FileNotFoundError, match=message) as error:
                releases.load(name, root)
            assert "\n" not in str(error.value)
        assert str(error.value).endswith(
            f"; to fetch them: tango data get {name} --root {tmp_path}"
        )

    def test_unknown_split_and_protocol(self, name, tmp_path):
        with pytest.raises(ValueError, match=r"unknown benchmark\.split 'tset'; did you mean"):
            releases.load(name, tmp_path, split="tset")
        with pytest.raises(ValueError, match=r"unknown benchmark\.protocol 'own'"):
            releases.load(name, tmp_path, protocol="own")


@pytest.mark.parametrize(
    ("write", "file"),
    [
        *((first.videomme_release, f"video/aAaAaAaAaA0{end}") for end in (".mp4", ".MP4")),
        (first.videomme_vlmevalkit, "aAaAaAaAaA0.mp4"),
        (first.longvideobench_release, "videos/long-_1.mp4"),
        (first.mlvu_release, "MLVU/video/1_plotQA/movie_1.mp4"),
        (first.mlvu_lmms_eval, "movie_1.mp4"),
        (first.mvbench_main, "video/tvqa/frames_fps3_hq/show_s01_clip_00/00001.jpg"),
        (first.mvbench_main, "video/data0613/clevrer/video_validation/object_existence.mp4"),
        (first.mvbench_cut, "star/Charades_segment/shared_1.mp4"),
        (first.tempcompass_authors, "videos/101.mp4"),
        (first.lvbench_release, "videos/-a.b-c_d-e1.mp4"),
        (first.lvbench_authors, "Cm73ma6Ibcs.mp4"),
        *((first.videomme_v2_release, f"{folder}/001.mp4") for folder in ("video", "videos")),
        (first.charades_text, "Charades_v1_480/00HFP.mp4"),
        (first.egoschema_release, "videos/0a01d7d0-11d6-4af6-abd9-2025656d3c63.mp4"),
        (first.egoschema_authors, "egoschema/videos/00b9a0de-c59e-49cb-a127-6081e2fb8c8e.MP4"),
        (first.nextqa_release, "NExTVideo/4010069381.mp4"),
        (first.nextqa_oe_release, "nextqa/NExTVideo/4010069381.mp4"),
        (first.perceptiontest_release, "videos/video_10.mp4"),
        (first.tomato_release, "videos/human/0215-06.mp4"),
        (first.motionbench_release, "MotionBench/self-collected/a_b.mp4"),
        (first.tvbench_release, "video/action_count/v1.mp4"),
        (first.activitynet_captions_authors, "videos/v_abc.mp4"),
    ],
    ids=lambda value: getattr(value, "__name__", value),
)
def test_videos_are_found_where_releases_harnesses_and_people_put_them(write, file, tmp_path):
    releases.touch(tmp_path, file)
    (name,) = (own for own, layouts in releases.LAYOUTS.items() if write in layouts)
    paths = {item.path for item in releases.load(name, write(tmp_path)).items()}
    expected = tmp_path / file
    assert str(expected.parent if expected.suffix == ".jpg" else expected) in paths


def test_below_hf_home_as_lmms_eval_leaves_it(tmp_path):
    first.videomme_release(tmp_path / "hub" / "datasets--lmms-lab--Video-MME" / "snapshots" / "abc")
    releases.touch(tmp_path, "videomme/data/aAaAaAaAaA0.mp4")
    expected = str(tmp_path / "videomme" / "data" / "aAaAaAaAaA0.mp4")
    assert next(releases.load("videomme", tmp_path).items()).path == expected
    assert next(releases.load("videomme", tmp_path / "videomme").items()).path == expected


def test_a_repository_folder_of_the_hub_cache_stands_for_its_snapshot(tmp_path):
    for name, seconds in (("abc", 200), ("abd", 100)):
        first.videomme_release(tmp_path / "snapshots" / name)
        os.utime(tmp_path / "snapshots" / name, (seconds, seconds))
    item = next(releases.load("videomme", tmp_path).items())
    assert item.path.startswith(str(tmp_path / "snapshots" / "abc" / "video"))  # the newest


# Benchmark, a row, and what is said about it.
MALFORMED = json.loads(Path(__file__).with_name("malformed_rows.json").read_text())["releases"]
V2 = first.VIDEOMME_V2_ROWS
FILES = {
    "videomme": "videomme.json",
    "longvideobench": "lvb_val.json",
    "tempcompass": "multi-choice.json",
    "videomme_v2": "videomme_v2.json",
    "charades_sta": "charades_sta_test.txt",
    "mvbench": "MVBench.tsv",
    "lvbench": "video_info.meta.jsonl",
}


@pytest.mark.parametrize(("name", "row", "problem"), MALFORMED, ids=[row[2] for row in MALFORMED])
def test_malformed_rows_are_named(name, row, problem, tmp_path):
    file = tmp_path / FILES[name]
    if file.suffix == ".tsv":
        releases.write_tsv(file, [row])
    elif file.suffix == ".json":
        releases.write_json(file, [row, *V2[1:]] if name == "videomme_v2" else [row])
    else:
        file.write_text(row if isinstance(row, str) else json.dumps(row))
    benchmark = releases.load(name, tmp_path)
    defects = [entry for entry in benchmark.entries() if isinstance(entry, Defect)]
    assert problem in defects[0].problem
    assert defects[0].where.endswith("row 1")
    with pytest.raises(ValueError, match=r"rows: \d, check all rows with: tango data check"):
        benchmark.records()


@pytest.mark.parametrize(
    ("name", "file", "content", "message"),
    [
        ("longvideobench", "lvb_val.json", '[{"id": "1",', "not JSON .*; download the file again"),
        ("videomme", "videomme.json", "[]", "holds no questions; download the file again"),
        ("videomme", "test-00000-of-00001.parquet", "PAR1", r"damaged \(ArrowInvalid: "),
        ("lvbench", "video_info.meta.jsonl", '{"qa": "none"}', "must hold .*; download the file"),
        ("tempcompass", "yes_no.json", '{"101": ["action"]}', "must hold .*; download the file"),
        ("tempcompass", "yes_no.json", '{"101": {"action": "Does he?"}}', "must hold .*; download"),
        ("mvbench", "test.json", '{"root": ["a"], "meta": {"Action Count": [{}]}}', "must hold"),
        ("mvbench", "test.json", '{"meta": {"Action Count": ["a"]}}', "must hold .*; download"),
    ],
)
def test_files_of_another_form_are_refused_in_one_line(name, file, content, message, tmp_path):
    (tmp_path / file).write_text(content)
    with pytest.raises(UserError, match=message) as error:
        releases.load(name, tmp_path)
    assert str(error.value).startswith(str(tmp_path / file))
    assert "\n" not in str(error.value)


def test_releases_of_several_files_must_be_complete(tmp_path):
    (first.mlvu_release(tmp_path) / "MLVU/json/5_order.json").unlink()
    with pytest.raises(FileNotFoundError, match=r"incomplete, missing 5_order\.json"):
        releases.load("mlvu", tmp_path)


def test_the_length_that_rows_state_is_that_of_the_file_in_seconds(tmp_path):
    rows = [dict(row) for row in first.LONGVIDEOBENCH_ROWS]
    rows[0]["duration"] = "unknown"
    releases.write_json(tmp_path / "lvb_val.json", rows)
    records = releases.load("longvideobench", tmp_path).records()
    assert [record.length_s for record in records] == [None, 12.5, 12.5]


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
    found = [(item.video_id, len(item.questions)) for item in items]
    assert found == [("aAaAaAaAaA0", 2), ("-b_B-b_B-b1", 2)]
    question = items[1].questions[0]
    assert question.choices == ("One.", "Two.", "Three.", "I can't tell.")
    groups = {"duration": "long", "domain": "Knowledge", "sub_category": "Geography"}
    assert question.groups == {**groups, "task_type": "OCR Problems"}


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
    answers = [records[name].question.answer for name in ("plotQA-1", "needle-0", "ego-0")]
    assert answers == [2, None, 2]
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
