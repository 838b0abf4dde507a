"""`tango data check` on a root where everything is wrong that we have met."""

import csv
import os
import re
import subprocess
import wave
from pathlib import Path

import pytest
from clips import clip
from numbered_videos import write_clip, write_folder
from releases import (
    LONGVIDEOBENCH_ROWS,
    mvbench_main,
    mvbench_rows,
    write_json,
)
from rich.console import Console

from jobs.data_check.check import check, check_file, data_check
from tango_core.benchmarks import build_benchmark
from tango_core.benchmarks.public.mvbench import ALL_TASKS

FOLDERS = {task.stem: Path("video") / task.source for task in ALL_TASKS}
FRAMES = Path("video/tvqa/frames_fps3_hq/show_s01_clip_00")


@pytest.fixture(scope="module")
def good(tmp_path_factory):
    """A complete MVBench, branch `main`, with a 4 s clip wherever a video belongs."""
    root = mvbench_main(tmp_path_factory.mktemp("mvbench"))
    clip = write_clip(root / "clip.mp4", 96)
    for stem, rows in mvbench_rows().items():
        path = root / FOLDERS[stem] / rows[0]["video"]
        if stem not in ("episodic_reasoning", "fine_grained_pose") and not path.exists():
            path.parent.mkdir(parents=True, exist_ok=True)
            os.link(clip, path)
    (root / FRAMES).parent.mkdir(parents=True)
    write_folder(root / FRAMES, 12, "{:05d}.jpg")
    return root


@pytest.fixture
def release(good, tmp_path):
    """A copy of it whose files may be damaged."""
    subprocess.run(["cp", "-rl", f"{good}/.", str(tmp_path)], check=True)
    return tmp_path


def replace(path: Path, data: bytes) -> None:
    """Give a file other bytes; the original, which other names share, keeps its own."""
    path.unlink()
    path.write_bytes(data)


def findings(root, **options):
    """Findings of an MVBench by (severity, kind, last part of the path)."""
    result = check(build_benchmark("mvbench", root=str(root)), jobs=2, **options)
    return {(f.severity, f.kind, Path(f.path).name): f for f in result.findings}, result


def test_a_complete_release_has_only_withheld_clips(good):
    found, result = findings(good)
    assert set(found) == {("withheld", "missing", "fine_grained_pose.mp4")} | {
        key for key in found if key[:2] == ("note", "annotation")
    }
    assert result.is_complete
    assert (result.num_questions, result.num_clips) == (40, 21)
    assert "licence" in found["withheld", "missing", "fine_grained_pose.mp4"].detail


def test_every_defect_is_found_and_named(release):
    """Twelve at once; one does not hide another."""
    video = (release / "clip.mp4").read_bytes()
    paths = {stem: release / FOLDERS[stem] / f"{stem}.mp4" for stem in FOLDERS}
    paths["object_existence"].unlink()
    replace(paths["moving_count"], b"")
    replace(paths["moving_direction"], b"<html>404 Not Found</html>")
    replace(paths["moving_attribute"], video[: len(video) // 2])
    replace(paths["object_shuffle"], _zeroed_payload(video))
    paths["action_count"].unlink()
    with wave.open(str(paths["action_count"]), "wb") as sound:
        sound.setparams((1, 2, 8000, 0, "NONE", ""))
        sound.writeframes(bytes(16000))
    paths["state_change"].unlink()
    paths["state_change"].symlink_to(release / "not" / "unpacked.mp4")
    paths["character_order"].unlink()
    paths["character_order"].mkdir()
    replace(release / FRAMES / "00003.jpg", b"not an image")

    rows = mvbench_rows()
    rows["action_sequence"][0].update(start=7.0, end=9.0)
    rows["action_prediction"][0].update(start=1.0, end=30.0)
    rows["object_interaction"][0].update(start=3.0, end=1.0)
    rows["scene_transition"][0]["candidates"] = "Yes"
    for stem in ("action_sequence", "action_prediction", "object_interaction", "scene_transition"):
        write_json_anew(release / "json" / f"{stem}.json", rows[stem])

    found, result = findings(release)
    assert not result.is_complete
    expected = {
        ("error", "missing", "object_existence.mp4"): "no such file",
        ("error", "unreadable", "moving_count.mp4"): "the file is empty (0 bytes)",
        ("error", "unreadable", "moving_direction.mp4"): "not a video that FFmpeg can read",
        ("error", "unreadable", "moving_attribute.mp4"): "the mp4 index (moov) is missing",
        ("error", "unreadable", "object_shuffle.mp4"): "frames decoded",
        ("error", "unreadable", "action_count.mp4"): "holds no video stream (found: audio)",
        ("error", "missing", "state_change.mp4"): "unpacked.mp4, which does not exist",
        ("error", "unreadable", "character_order.mp4"): "the folder holds no images",
        ("error", "unreadable", "show_s01_clip_00"): "00003.jpg: cannot identify image file",
        ("error", "bounds", "shared.mp4"): "starts at 7 s but the video ends at 4.00 s",
        ("note", "bounds", "shared.mp4"): "ends at 30 s but the video at 4.00 s; it is cut short",
        ("error", "annotation", "object_interaction.json, row 1"): "got 3 and 1",
        ("error", "annotation", "scene_transition.json, row 1"): "candidates is not a list",
    }
    for key, detail in expected.items():
        assert detail in found[key].detail, key
    wrong = {key for key in found if key[0] == "error"}
    assert wrong == {key for key in expected if key[0] == "error"}
    outside = found["error", "bounds", "shared.mp4"]
    assert (outside.clip_start, outside.clip_end) == (7.0, 9.0)
    assert outside.question_ids == "action_sequence-0"
    missing = found["error", "missing", "object_existence.mp4"]
    assert missing.question_ids == "object_existence-0 object_existence-1"


def write_json_anew(path, content):
    path.unlink()
    write_json(path, content)


def _zeroed_payload(video: bytes) -> bytes:
    """Keep an mp4's index and overwrite its frames."""
    begin = video.index(b"mdat") + 4
    end = video.index(b"moov") - 4
    return video[:begin] + bytes(end - begin) + video[end:]


@pytest.mark.slow
def test_a_file_that_hangs_its_reader_does_not_hang_the_check(release):
    """The others have as long as it has, which must be enough on a busy machine."""
    image = release / FRAMES / "00003.jpg"
    image.unlink()
    os.mkfifo(image)
    found, result = findings(release, timeout_s=40.0)
    assert found["error", "timeout", "show_s01_clip_00"].detail == "not opened within 40 s"
    assert sum(f.severity == "error" for f in result.findings) == 1


def test_the_report_as_a_table_and_on_the_terminal(release):
    (release / FOLDERS["moving_count"] / "moving_count.mp4").unlink()
    output = release / "reports" / "findings.csv"
    console = Console(record=True, width=100, force_terminal=False)
    assert data_check("mvbench", release, output, 2, console) == 1
    text = console.export_text()
    assert "mvbench: 40 questions, 21 clips, 18 files" in text
    assert "the complete public release has 4,000 questions" in text
    assert re.search(r"error: missing: 1\n  .*moving_count\.mp4: no such file", text)
    assert "clips that are withheld will fail; let a job accept them: --set max_failures=1" in text
    with output.open(newline="") as file:
        rows = list(csv.DictReader(file))
    errors = [row for row in rows if row["severity"] == "error"]
    assert [row["question_ids"] for row in errors] == ["moving_count-0 moving_count-1"]


def longvideobench(root, *lengths_s, name="lvb_val.json", **changes):
    """Write a LongVideoBench with a row about a clip of 4 s for every length stated."""
    (root / "videos").mkdir()
    video = write_clip(root / "clip.mp4", 96)
    for number in range(len(lengths_s)):
        os.link(video, root / "videos" / f"{number}.mp4")
    rows = [
        {**LONGVIDEOBENCH_ROWS[0], "id": str(n), "video_path": f"{n}.mp4", "duration": s, **changes}
        for n, s in enumerate(lengths_s)
    ]
    write_json(root / name, rows)
    return root


def test_a_whole_video_of_another_length_than_its_rows_state_is_named(tmp_path):
    root = longvideobench(tmp_path, 4.0, 5.9, 6.1, 2.1, 1.9, 190.16)
    result = check(build_benchmark("longvideobench", root=str(root)))
    assert {(f.severity, f.kind) for f in result.findings} == {("warning", "length")}
    assert [f.question_ids for f in result.findings] == ["2", "4", "5"]
    assert result.findings[-1].detail == (
        "lasts 4.00 s but should last 190.16 s; is it the right video?"
    )
    console = Console(record=True, width=100, force_terminal=False)
    assert data_check("longvideobench", root, None, 1, console) == 0
    assert "warning: length: 3\n" in console.export_text()


def test_a_video_that_has_lost_frames_inside_is_damaged():
    (problem,) = check_file(str(clip("hole.webm")), [], [])
    assert (problem.severity, problem.kind) == ("error", "damaged")
    assert "has lost frames between" in problem.detail


def test_the_split_that_is_asked_for_is_checked(tmp_path):
    longvideobench(tmp_path, 4.0, name="lvb_test_wo_gt.json", correct_choice=None)
    console = Console(record=True, width=100, force_terminal=False)
    assert data_check("longvideobench", tmp_path, None, 1, console, split="test_wo_gt") == 0
    text = console.export_text()
    assert "longvideobench: 1 question, 1 clip, 1 file\n" in text
    assert "the complete public release has 5,341 questions" in text
    with pytest.raises(FileNotFoundError, match=r"lvb_val\.json"):
        data_check("longvideobench", tmp_path, None, 1, console)


def test_people_s_own_videos_are_checked_too(tmp_path):
    write_clip(tmp_path / "good.mp4", 10)
    (tmp_path / "bad.mp4").write_bytes(b"")
    result = check(build_benchmark("custom", root=str(tmp_path)))
    assert [(Path(f.path).name, f.kind) for f in result.findings] == [("bad.mp4", "unreadable")]
    assert (result.num_clips, result.num_questions) == (2, 0)
