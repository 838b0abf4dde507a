"""Only files that are decoded differently than before differ from what is cached of them."""

import os

from clips import CLIPS, WITH_DROPS, clip
from numbered_videos import write_clip

from pipeline.cache.fingerprint import source_fingerprint
from tango_core.video.headers import REVISION, decoding_revision

DAMAGED_AVI = ["hole.avi", "hole_and_index.avi", "half.avi"]
CONCERNED = {*WITH_DROPS, *DAMAGED_AVI, "hidden_frame.avi", "mirrored.mp4"} | {
    f"old_x264.{suffix}" for suffix in ("mp4", "mkv")
}


def test_only_the_files_that_changed_are_named():
    for name in CLIPS:
        path = str(clip(name))
        expected = REVISION if name in CONCERNED else ""
        assert decoding_revision(path) == expected, name
        for hash_content in (False, True):
            fingerprint = source_fingerprint(path, hash_content)
            assert fingerprint.endswith(REVISION) == bool(expected), name


def test_a_header_in_front_of_the_pictures_is_read_as_well(tmp_path):
    path = write_clip(
        tmp_path / "a.mp4", 4, pixel_format="yuv444p", container_options={"movflags": "faststart"}
    )
    assert decoding_revision(path) == REVISION


def test_an_avi_without_an_index_may_have_gaps(tmp_path):
    path = tmp_path / "cut.avi"
    path.write_bytes(clip("mpeg4.avi").read_bytes()[:8000])
    assert decoding_revision(path) == REVISION


def test_what_is_no_file_is_not_opened(tmp_path):
    os.mkfifo(tmp_path / "pipe.mp4")
    assert decoding_revision(tmp_path / "pipe.mp4") == ""
    assert decoding_revision(tmp_path) == ""
    assert decoding_revision(tmp_path / "gone.mp4") == ""
