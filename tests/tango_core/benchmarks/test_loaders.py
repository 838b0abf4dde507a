"""The four public benchmarks, read from every layout in which they lie on people's disks."""

from collections import Counter

import pytest
from releases import (
    LONGVIDEOBENCH_ROWS,
    MLVU_ROWS,
    VIDEOMME_ROWS,
    longvideobench_parquet,
    longvideobench_release,
    longvideobench_vlmevalkit,
    mlvu_lmms_eval,
    mlvu_release,
    mlvu_vlmevalkit,
    mvbench_cut,
    mvbench_main,
    mvbench_vlmevalkit,
    touch,
    videomme_release,
    videomme_vlmevalkit,
    write_json,
    write_tsv,
)

from tango_core.benchmarks import build_benchmark
from tango_core.benchmarks.annotated import Defect
from tango_core.benchmarks.mvbench_tasks import ALL_TASKS

LAYOUTS = [
    ("videomme", videomme_release),
    ("videomme", videomme_vlmevalkit),
    ("longvideobench", longvideobench_release),
    ("longvideobench", longvideobench_parquet),
    ("longvideobench", longvideobench_vlmevalkit),
    ("mlvu", mlvu_release),
    ("mlvu", mlvu_vlmevalkit),
    ("mlvu", mlvu_lmms_eval),
    ("mvbench", mvbench_main),
    ("mvbench", mvbench_cut),
    ("mvbench", mvbench_vlmevalkit),
]


def load(name, root, **options):
    return build_benchmark(name, root=str(root), **options)


def asked(benchmark):
    return [question for item in benchmark.items() for question in item.questions]


@pytest.mark.parametrize(("name", "write"), LAYOUTS, ids=lambda v: getattr(v, "__name__", v))
class TestEveryLayout:
    def test_every_question_is_asked_once(self, name, write, tmp_path):
        benchmark = load(name, write(tmp_path))
        ids = [question.id for question in asked(benchmark)]
        assert len(ids) == len(set(ids)) == len(benchmark.records()) > 0

    def test_every_clip_has_an_id_and_a_path_of_its_own(self, name, write, tmp_path):
        items = list(load(name, write(tmp_path)).items())
        assert len({item.video_id for item in items}) == len(items)
        assert len({(item.path, item.clip) for item in items}) == len(items)

    def test_missing_videos_are_items_all_the_same(self, name, write, tmp_path):
        items = list(load(name, write(tmp_path)).items())
        assert all(item.path.startswith(str(tmp_path)) for item in items)

    def test_reading_twice_gives_the_same(self, name, write, tmp_path):
        benchmark = load(name, write(tmp_path))
        assert list(benchmark.entries()) == list(benchmark.entries())
        assert list(benchmark.items()) == list(benchmark.items())

    def test_limit_takes_the_first_clips_whole(self, name, write, tmp_path):
        benchmark = load(name, write(tmp_path))
        assert list(benchmark.items(1)) == list(benchmark.items())[:1]
        assert list(benchmark.items(0)) == []

    def test_both_protocols_render_and_read(self, name, write, tmp_path):
        root = write(tmp_path)
        for protocol in ("vlmevalkit", "lmms_eval"):
            benchmark = load(name, root, protocol=protocol)
            for question in asked(benchmark):
                prompt = benchmark.protocol.render(question)
                assert question.text.strip() in prompt.after
                assert benchmark.protocol.read_choice("A", question) in (0, None)


@pytest.mark.parametrize("write", [videomme_release, videomme_vlmevalkit])
def test_videomme_groups_the_questions_of_a_video(write, tmp_path):
    touch(tmp_path, "video/aAaAaAaAaA0.mp4", "video/-b_B-b_B-b1.mp4")
    items = list(load("videomme", write(tmp_path)).items())
    assert [(item.video_id, len(item.questions)) for item in items] == [
        ("aAaAaAaAaA0", 2),
        ("-b_B-b_B-b1", 2),
    ]
    assert items[0].path == str(tmp_path / "video" / "aAaAaAaAaA0.mp4")
    assert items[0].clip is None
    question = items[1].questions[0]
    assert question.text == "Which number is\nwritten?"
    assert question.choices == ("One.", "Two.", "Three.", "I can't tell.")
    assert question.answer == 0
    assert question.groups == {
        "duration": "long",
        "domain": "Knowledge",
        "sub_category": "Geography",
        "task_type": "OCR Problems",
    }


def test_videomme_question_ids_are_the_releases_where_it_has_them(tmp_path):
    release = load("videomme", videomme_release(tmp_path / "release"))
    assert [q.id for q in asked(release)] == ["001-1", "001-2", "002-1", "002-2"]
    table = load("videomme", videomme_vlmevalkit(tmp_path / "table"))
    assert [q.id for q in asked(table)][:2] == ["aAaAaAaAaA0-1", "aAaAaAaAaA0-2"]
    assert [record.index for record in table.records()] == [0, 1, 2, 3]


@pytest.mark.parametrize(
    "file", ["data/aAaAaAaAaA0.mkv", "data/aAaAaAaAaA0.MP4", "aAaAaAaAaA0.mp4"]
)
def test_videomme_finds_videos_where_lmms_eval_and_people_put_them(file, tmp_path):
    touch(tmp_path, file)
    item = next(load("videomme", videomme_release(tmp_path)).items())
    assert item.path == str(tmp_path / file)


def test_videomme_below_hf_home_as_lmms_eval_leaves_it(tmp_path):
    snapshot = tmp_path / "hub" / "datasets--lmms-lab--Video-MME" / "snapshots" / "abc"
    videomme_release(snapshot)
    touch(tmp_path, "videomme/data/aAaAaAaAaA0.mp4")
    expected = str(tmp_path / "videomme" / "data" / "aAaAaAaAaA0.mp4")
    assert next(load("videomme", tmp_path).items()).path == expected
    assert next(load("videomme", tmp_path / "videomme").items()).path == expected


def test_a_repository_folder_of_the_hub_cache_stands_for_its_snapshot(tmp_path):
    videomme_release(tmp_path / "snapshots" / "abc")
    item = next(load("videomme", tmp_path).items())
    assert item.path.startswith(str(tmp_path / "snapshots" / "abc" / "video"))


def test_videomme_prompt_is_the_release_text_in_both_layouts(tmp_path):
    first = VIDEOMME_ROWS[0]
    for write in (videomme_release, videomme_vlmevalkit):
        benchmark = load("videomme", write(tmp_path / write.__name__))
        text = benchmark.protocol.render(asked(benchmark)[0]).after
        assert text.endswith(
            "Question: " + "\n".join([first["question"], *first["options"]]) + "\nAnswer: "
        )


@pytest.mark.parametrize(
    "write", [longvideobench_release, longvideobench_parquet, longvideobench_vlmevalkit]
)
def test_longvideobench_rows_in_every_layout(write, tmp_path):
    touch(tmp_path, "videos/long-_1.mp4", "videos/short_2.mp4")
    items = list(load("longvideobench", write(tmp_path), split="val").items())
    assert [(item.video_id, len(item.questions)) for item in items] == [
        ("long-_1", 2),
        ("short_2", 1),
    ]
    assert items[0].path == str(tmp_path / "videos" / "long-_1.mp4")
    first, second = items[0].questions
    assert (first.id, first.answer, len(first.choices)) == ("long-_1_0", 4, 5)
    assert first.groups == {"duration": "600", "category": "S2E"}
    assert (second.choices, second.answer) == (("red", "blue"), 1)


def test_longvideobench_hidden_answers_are_unknown(tmp_path):
    rows = [{k: v for k, v in row.items() if k != "correct_choice"} for row in LONGVIDEOBENCH_ROWS]
    write_json(tmp_path / "lvb_test_wo_gt.json", rows)
    assert {q.answer for q in asked(load("longvideobench", tmp_path, split="test_wo_gt"))} == {None}
    with pytest.raises(FileNotFoundError, match=r"lvb_val\.json"):
        load("longvideobench", tmp_path)


@pytest.mark.parametrize("folder", ["MLVU/json", "json", "."])
def test_mlvu_reads_the_seven_tasks(folder, tmp_path, caplog):
    touch(tmp_path, "MLVU/video/1_plotQA/movie_1.mp4")
    benchmark = load("mlvu", mlvu_release(tmp_path, folder), split="dev")
    tasks = Counter(question.groups["task"] for question in asked(benchmark))
    assert tasks == {stem[2:]: 2 if stem == "1_plotQA" else 1 for stem in MLVU_ROWS}
    assert "7_topic_reasoning.json, row 1: question and answer are empty; left out" in caplog.text
    first = next(benchmark.items())
    assert first.video_id == "1_plotQA/movie_1"
    assert first.path == str(tmp_path / "MLVU" / "video" / "1_plotQA" / "movie_1.mp4")


def test_mlvu_oddities_of_the_release_are_kept_and_noted(tmp_path):
    records = {r.question.id: r for r in load("mlvu", mlvu_release(tmp_path)).records()}
    assert records["plotQA-1"].question.answer == 2  # of two equal options VLMEvalKit's: the last
    assert records["plotQA-1"].notes == ("the right option 'Three' occurs twice",)
    assert records["needle-0"].question.answer is None
    assert records["needle-0"].notes == (
        "the answer 'A flying dog' is none of the options; not scored",
    )
    assert records["ego-0"].question.answer == 2
    assert records["ego-0"].notes == ("the right option is empty",)
    assert records["ego-0"].question.choices[0] == "Shelf "
    assert records["topic_reasoning-1"].index == 8


def test_mlvu_tables_of_both_harnesses_ask_the_same(tmp_path):
    table = load("mlvu", mlvu_vlmevalkit(tmp_path / "v"))
    one = load("mlvu", mlvu_lmms_eval(tmp_path / "l"), protocol="lmms_eval")
    texts = {question.text: question for question in asked(table)}
    for question in asked(one):
        assert texts[question.text].choices == question.choices
    cell = "In what\norder?\n(A) ab\n(B) ba\n(C) aa\n(D) bb"
    prompts = [one.protocol.render(question).after for question in asked(one)]
    assert f"{cell}\nOnly give the best option.\nBest option: (" in prompts


def test_mlvu_in_one_folder_groups_by_file_across_tasks(tmp_path):
    touch(tmp_path, "movie_1.mp4")
    items = {item.video_id: item for item in load("mlvu", mlvu_lmms_eval(tmp_path)).items()}
    assert [q.groups["task"] for q in items["movie_1"].questions] == [
        "plotQA",
        "plotQA",
        "topic_reasoning",
    ]
    assert items["movie_1"].path == str(tmp_path / "movie_1.mp4")


def test_mlvu_needs_all_seven_files(tmp_path):
    mlvu_release(tmp_path)
    (tmp_path / "MLVU" / "json" / "5_order.json").unlink()
    with pytest.raises(FileNotFoundError, match=r"incomplete, missing 5_order\.json"):
        load("mlvu", tmp_path)


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
    assert {q.groups["task"] for q in items[0].questions} == {
        "Action Sequence",
        "Action Prediction",
        "Object Interaction",
    }
    bounded = {r.question.groups["task"] for r in benchmark.records() if r.clip is not None}
    assert bounded == {task.name for task in ALL_TASKS if task.bounded}


def test_mvbench_frame_folders_and_sub_folders(tmp_path):
    touch(tmp_path, "video/tvqa/frames_fps3_hq/show_s01_clip_00/00001.jpg")
    touch(tmp_path, "video/vlnqa/left/turn.mp4")
    items = {item.video_id: item for item in load("mvbench", mvbench_main(tmp_path)).items()}
    frames = items["tvqa/frames_fps3_hq/show_s01_clip_00#0.0-1.25"]
    assert frames.path == str(tmp_path / "video/tvqa/frames_fps3_hq/show_s01_clip_00")
    assert items["vlnqa/left/turn"].path == str(tmp_path / "video/vlnqa/left/turn.mp4")


@pytest.mark.parametrize("write", [mvbench_main, mvbench_cut, mvbench_vlmevalkit])
def test_mvbench_withheld_clips_are_items_with_a_reason(write, tmp_path):
    benchmark = load("mvbench", write(tmp_path))
    reasons = Counter(
        record.question.groups["task"]
        for record in benchmark.records()
        if benchmark.missing_reason(record)
    )
    assert reasons == {"Fine-grained Pose": 2}
    assert len(benchmark.records()) == 40


def test_mvbench_clips_that_are_cut_have_no_bounds(tmp_path):
    touch(tmp_path, "star/Charades_segment/shared_1.mp4")
    items = list(load("mvbench", mvbench_cut(tmp_path)).items())
    assert {item.clip for item in items} == {None}
    paths = {item.video_id: item.path for item in items}
    assert paths["star/Charades_segment/shared_1"] == str(
        tmp_path / "star" / "Charades_segment" / "shared_1.mp4"
    )
    assert paths["tvqa/video_fps3_hq_segment/show_s01_clip_00_0"].startswith(
        str(tmp_path / "tvqa" / "video_fps3_hq_segment")
    )


def test_mvbench_json_files_beside_cut_clips_as_lmms_eval_reads_them(tmp_path):
    """The branch `video` also has a JSON file per task, with bounds that the clips make void."""
    touch(tmp_path, "mvbench_video/star/Charades_segment/shared.mp4")
    mvbench_main(tmp_path / "mvbench_video")
    items = list(load("mvbench", tmp_path).items())
    shared = [item for item in items if item.path.endswith("shared.mp4")]
    assert [item.clip for item in shared] == [None]
    assert {item.clip for item in items if "sta/" in item.path} == {None}


def test_mvbench_patch_that_was_not_moved_is_found(tmp_path):
    touch(tmp_path, "video/data0613/clevrer/video_validation/object_existence.mp4")
    items = {item.video_id: item.path for item in load("mvbench", mvbench_main(tmp_path)).items()}
    assert "data0613" in items["clevrer/video_validation/object_existence"]


@pytest.mark.parametrize("name", ["videomme", "mvbench", "longvideobench", "mlvu"])
class TestMistakes:
    def test_no_root(self, name):
        with pytest.raises(ValueError, match=r"benchmark\.root is missing; set it to the folder"):
            build_benchmark(name)

    def test_root_that_is_not_there(self, name, tmp_path):
        with pytest.raises(
            FileNotFoundError, match=r"is not a folder; .* expects there: "
        ) as error:
            load(name, tmp_path / "nothing")
        assert "\n" not in str(error.value)

    def test_root_without_annotations(self, name, tmp_path):
        with pytest.raises(FileNotFoundError, match=r"annotations not found under .*; looked for"):
            load(name, tmp_path)

    def test_unknown_split_and_protocol(self, name, tmp_path):
        with pytest.raises(ValueError, match=r"unknown benchmark\.split 'tset'; did you mean"):
            load(name, tmp_path, split="tset")
        with pytest.raises(ValueError, match=r"unknown benchmark\.protocol 'own'"):
            load(name, tmp_path, protocol="own")


def test_malformed_rows_are_all_known_and_the_first_one_ends_a_job(tmp_path):
    rows = [dict(row) for row in LONGVIDEOBENCH_ROWS]
    rows[0]["correct_choice"] = 5
    del rows[1]["question"]
    rows.append(dict(rows[2]))
    write_json(tmp_path / "lvb_val.json", rows)
    benchmark = load("longvideobench", tmp_path)
    defects = [entry for entry in benchmark.entries() if isinstance(entry, Defect)]
    assert [defect.problem for defect in defects] == [
        "correct_choice 5 is none of the 5 options",
        "no question",
        "question id 'long-_1_1' occurs twice",
    ]
    with pytest.raises(
        ValueError, match=r"row 1: correct_choice 5 .*; 3 rows are malformed, check"
    ):
        next(benchmark.items())


def test_one_malformed_row_is_counted_as_one_and_the_check_is_of_its_split(tmp_path):
    write_json(tmp_path / "lvb_val.json", [{**LONGVIDEOBENCH_ROWS[0], "correct_choice": 5}])
    command = f"tango data check longvideobench {tmp_path}"
    for split, ending in (("test", command), ("val", f"{command} --split val")):
        with pytest.raises(ValueError, match="; 1 row is malformed, check all rows with") as error:
            load("longvideobench", tmp_path, split=split).records()
        assert str(error.value).endswith(ending)


@pytest.mark.parametrize(
    "write",
    [
        longvideobench_release,
        longvideobench_parquet,
        longvideobench_vlmevalkit,
        mlvu_release,
        mlvu_vlmevalkit,
    ],
)
def test_the_length_that_rows_state_is_that_of_the_file_in_seconds(write, tmp_path):
    name = write.__name__.partition("_")[0]
    lengths = {record.length_s for record in load(name, write(tmp_path)).records()}
    assert lengths == {12.5 if name == "longvideobench" else 480.5}


def test_rows_without_a_length_are_questions_all_the_same(tmp_path):
    rows = [dict(row) for row in LONGVIDEOBENCH_ROWS]
    rows[0]["duration"], rows[1]["duration"] = "unknown", 0
    del rows[2]["duration"]
    write_json(tmp_path / "lvb_val.json", rows)
    records = load("longvideobench", tmp_path).records()
    assert [record.length_s for record in records] == [None, None, None]


@pytest.mark.parametrize(
    ("change", "problem"),
    [
        ({"answer": "E"}, "answer 'E' is not a letter of its 4 options"),
        ({"answer": ""}, "no answer"),
        ({"options": "A. One."}, "options is not a list: 'A. One.'"),
        ({"options": []}, r"options must be a list of texts, got \[\]"),
        ({"duration": None}, "no duration"),
    ],
)
def test_videomme_rows_that_are_no_questions(change, problem, tmp_path):
    write_json(tmp_path / "videomme.json", [{**VIDEOMME_ROWS[0], **change}])
    with pytest.raises(ValueError, match=problem):
        next(load("videomme", tmp_path).items())


def test_videomme_options_in_another_form_are_noted(tmp_path):
    options = ["(A) One", "(B) Two", "(C) Three", "(D) Four"]
    write_json(tmp_path / "videomme.json", [{**VIDEOMME_ROWS[0], "options": options}])
    record = load("videomme", tmp_path).records()[0]
    assert record.question.choices == ("One", "Two", "Three", "Four")
    assert record.notes == ("options are not written 'A. text'; the prompt has them in that form",)


def test_mvbench_bounds_that_are_missing_or_run_backwards(tmp_path):
    rows = {
        "task_type": "Action Sequence",
        "video": "x.mp4",
        "question": "Which?",
        "answer": "a",
        "candidates": ["a", "b"],
    }
    table = [
        {**rows, "start": 1.0, "end": 0.5},
        {**rows, "start": None, "end": 2.0},
        {**rows, "start": 1.0, "end": 1.0},
    ]
    write_tsv(tmp_path / "MVBench.tsv", table)
    first, second, third = load("mvbench", tmp_path).entries()
    assert first.problem == "bounds must satisfy 0 <= start <= end, got 1 and 0.5"
    assert second.problem == "no start and end, which this task needs"
    assert third.notes == ("the clip starts and ends at 1 s: one frame",)


def test_a_damaged_annotation_file_is_named(tmp_path):
    (tmp_path / "lvb_val.json").write_text('[{"id": "1",')
    with pytest.raises(ValueError, match=r"lvb_val\.json: not JSON .*; download the file again"):
        load("longvideobench", tmp_path)


def test_an_annotation_file_without_rows_is_named(tmp_path):
    (tmp_path / "videomme.json").write_text("[]")
    with pytest.raises(ValueError, match=r"videomme\.json: holds no questions; download") as caught:
        load("videomme", tmp_path)
    assert "\n" not in str(caught.value)
