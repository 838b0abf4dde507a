"""A file that is replaced while a job runs is never decoded under the key of what was planned."""

import functools
import os
import shutil

import pytest
from clips import clip
from numbered_videos import write_folder

from pipeline.cache.names import clip_key, source_fingerprint
from pipeline.plan import plan_clips
from pipeline.rows import clips_in
from pipeline.stages import decode as stage
from tango_core.types import VideoItem
from tango_core.video import FrameSpec

decode = functools.partial(
    stage.decode_video, spec=FrameSpec(8, size=(32, 64)), timeout_s=120, memory_gib=4
)
both_ways = pytest.mark.parametrize("hash_content", [False, True])


@pytest.fixture
def video(tmp_path):
    """A file that is there when the job is planned."""
    return shutil.copy(clip("closed_gop.mp4"), tmp_path / "video.mp4")


def planned(path, hash_content, *bounds):
    """The rows of some clips of a file; of all of it without bounds."""
    items = [VideoItem(str(n), str(path), clip) for n, clip in enumerate(bounds or [None])]
    given = [("custom", item) for item in items]
    return list(clips_in(plan_clips(given, {}, hash_content=hash_content)))


def replace(path, name="vp9.webm"):
    """As whoever downloads a better version does."""
    shutil.copyfile(clip(name), f"{path}.new")
    os.replace(f"{path}.new", path)


def assert_replaced(result, path):
    assert (result.status, result.frames) == ("decode_failed", None)
    said = f"{path} has been replaced since the job was planned; --resume plans it again"
    assert said in result.error
    assert result.error.count("replaced") == 1
    assert result.store_fault is None


@both_ways
def test_between_plan_and_decode(video, hash_content):
    (row,) = planned(video, hash_content)
    assert decode(row).status == "ok"
    replace(video)
    result = decode(row)
    assert_replaced(result, video)
    assert result.error.startswith(f"decode: {video} has been")
    assert ("--hash-content" in result.error) != hash_content
    (again,) = planned(video, hash_content)
    assert again.clip_key != row.clip_key
    assert decode(again).status == "ok"


@both_ways
def test_while_it_is_decoded(video, hash_content, monkeypatch):
    (row,) = planned(video, hash_content)
    child = stage._child(4)

    class Replacing:
        def call(self, *args, **options):
            frames = child.call(*args, **options)
            if options["what"] == "decoder":
                replace(video)
            return frames

    monkeypatch.setattr(stage, "_child", lambda memory_gib: Replacing())
    assert_replaced(decode(row), video)


@both_ways
@pytest.mark.parametrize("worse", ["empty.mp4", "hole.webm"])
def test_by_one_that_is_damaged(video, hash_content, worse):
    (row,) = planned(video, hash_content)
    replace(video, worse)
    assert_replaced(decode(row, keep_damaged=True), video)
    assert_replaced(decode(row), video)


@both_ways
def test_a_frame_of_a_folder(tmp_path, hash_content):
    folder = write_folder(tmp_path / "frames", 8)
    (row,) = planned(folder, hash_content)
    assert decode(row).status == "ok"
    shutil.copy(folder / "00008.png", folder / "00001.png")
    assert_replaced(decode(row), folder)


def test_a_file_that_changes_while_it_is_planned_counts_as_what_was_read(video):
    def identify(path, hash_content):
        if hash_content:
            replace(video)
        return source_fingerprint(path, hash_content)

    item = ("custom", VideoItem("v", str(video)))
    (row,) = clips_in(plan_clips([item], {}, hash_content=True, identify=identify))
    result = decode(row)
    assert result.status == "ok"
    assert result.clip_key == clip_key(source_fingerprint(str(video), True), None)
