"""MVBench: bounds, withheld clips, and the places where videos lie."""

import json
from collections import Counter

import pytest
from releases import (
    load,
    mvbench_cut,
    mvbench_main,
    mvbench_vlmevalkit,
    touch,
    write_tsv,
)

from tango_core.benchmarks import build_benchmark
from tango_core.benchmarks.mvbench import ALL_TASKS


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


@pytest.mark.parametrize(
    ("part", "broken"),
    [("root", ["a"]), ("meta", {"Action Count": ["a"]}), ("meta", {"Action Count": {}})],
)
def test_mvbench_json_of_another_form_is_refused_in_one_line(part, broken, tmp_path):
    path = mvbench_cut(tmp_path) / "test.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), part: broken}))
    with pytest.raises(ValueError, match=r"test\.json: .*must be"):
        list(build_benchmark("mvbench", root=str(tmp_path)).items())
