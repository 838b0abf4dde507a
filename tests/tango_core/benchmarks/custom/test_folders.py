"""People's own folders: which files and folders of images are videos."""

import pytest

from tango_core.benchmarks import build_benchmark
from tango_core.benchmarks.custom import IMAGE_SUFFIXES
from tango_core.video.folder import IMAGE_SUFFIXES as DECODED_SUFFIXES


@pytest.fixture
def folder(tmp_path):
    for name in ("b.mp4", "a.MKV", "notes.txt", ".hidden.mp4", "deep/er/c.webm"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text("no video at all")
    for name in ("frames/00001.jpg", "frames/00002.jpg", "with_cover/d.mp4", "with_cover/d.png"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text("")
    return tmp_path


def test_a_folder_is_its_videos_and_folders_of_images_by_name(folder):
    items = list(build_benchmark("custom", root=str(folder)).items())
    assert [item.video_id for item in items] == [
        "a.MKV",
        "b.mp4",
        "deep/er/c.webm",
        "frames",
        "with_cover/d.mp4",
    ]
    assert all(item.questions == () and item.clip is None for item in items)
    assert items[2].path == str(folder / "deep/er/c.webm")
    assert items[:2] == list(build_benchmark("custom", root=str(folder)).items(2))


def test_a_folder_linked_into_itself_is_read_once(folder):
    (folder / "loop").symlink_to(folder, target_is_directory=True)
    assert len(list(build_benchmark("custom", root=str(folder)).items())) == 5


def test_a_folder_of_images_alone_and_a_single_video_are_one_item(folder):
    for name in ("frames", "b.mp4"):
        (item,) = build_benchmark("custom", root=str(folder / name)).items()
        assert (item.video_id, item.path) == (name, str(folder / name))


def test_a_folder_s_table_is_used_instead_of_its_files(folder):
    (folder / "questions.jsonl").write_text('{"video": "b.mp4", "question": "What?"}')
    (item,) = build_benchmark("custom", root=str(folder)).items()
    assert item.path == str(folder / "b.mp4")
    assert len(item.questions) == 1
    (folder / "questions.csv").write_text("video\nb.mp4\n")
    with pytest.raises(ValueError, match=r"both questions\.csv and questions\.jsonl are here"):
        build_benchmark("custom", root=str(folder))


def test_a_root_that_is_no_place_for_videos_is_refused(folder):
    empty = folder / "empty"
    empty.mkdir()
    with pytest.raises(ValueError, match="holds no videos"):
        build_benchmark("custom", root=str(empty))
    with pytest.raises(ValueError, match="neither a folder, nor a table"):
        build_benchmark("custom", root=str(folder / "notes.txt"))
    with pytest.raises(FileNotFoundError, match="does not exist"):
        build_benchmark("custom", root=str(folder / "nowhere"))
    with pytest.raises(ValueError, match=r"benchmark\.root is missing"):
        build_benchmark("custom")
    with pytest.raises(ValueError, match=r"unknown benchmark\.split 'train'"):
        build_benchmark("custom", root=str(folder), split="train")


def test_the_decoder_reads_the_images_that_make_a_folder_a_video():
    assert IMAGE_SUFFIXES == DECODED_SUFFIXES
