import os

import numpy as np
import pytest
from clips import CLIPS, WITH_DROPS, clip
from hypothesis import given, settings
from hypothesis import strategies as st
from numbered_videos import number_of, write_clip

from pipeline.cache.names import source_fingerprint
from tango_core.video import pyav
from tango_core.video.headers import REVISION, decoding_revision
from tango_core.video.index import read_index
from tango_core.video.pyav import SequentialReader
from tango_core.video.reader import ReaderError

NAMES = ["closed_gop.mp4", "open_gop.mp4", "h265_open_gop.mp4", "vp9.webm", "variable_rate.mkv"]


def read(reader, indices):
    try:
        return [(at, number_of(picture)) for at, picture in reader.fetch(np.array(indices))]
    finally:
        reader.close()


@pytest.mark.parametrize("name", NAMES)
@settings(max_examples=12, deadline=None)
@given(indices=st.sets(st.integers(0, 119), min_size=1, max_size=40))
def test_any_set_of_frames_comes_out_exactly(name, indices):
    path = str(clip(name))
    wanted = sorted(indices)
    expected = [(at, at) for at in wanted]
    index = read_index(path)
    assert read(pyav.IndexedReader(path, index), wanted) == expected
    assert read(SequentialReader(path, index), wanted) == expected


def test_a_frame_late_in_the_file_does_not_cost_decoding_the_rest(monkeypatch):
    path = str(clip("open_gop.mp4"))
    decoded = []
    decode_packet = pyav.decode_packet
    monkeypatch.setattr(
        pyav, "decode_packet", lambda s, p, n: decoded.append(p) or decode_packet(s, p, n)
    )
    assert read(pyav.IndexedReader(path, read_index(path)), [100]) == [(100, 100)]
    assert len(decoded) < 24


def test_a_frame_that_does_not_come_out_is_noticed():
    path = str(clip("no_last_picture.mp4"))
    with pytest.raises(ReaderError, match="frame 119 of 120 did not come out"):
        read(pyav.IndexedReader(path, read_index(path)), [0, 119])


@pytest.mark.parametrize("name", ["old_x264.mp4", "old_x264.mkv"])
def test_a_reader_that_seeks_knows_the_version_that_only_the_first_packet_tells(name):
    path = str(clip(name))
    index = read_index(path)
    in_order = dict(SequentialReader(path, index).fetch(np.arange(48)))
    for at in range(12, 48):
        reader = pyav.IndexedReader(path, index)
        ((_, picture),) = reader.fetch(np.array([at]))
        reader.close()
        np.testing.assert_array_equal(picture, in_order[at])


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


def test_what_is_no_file_is_not_opened(tmp_path):
    os.mkfifo(tmp_path / "pipe.mp4")
    assert decoding_revision(tmp_path / "pipe.mp4") == ""
    assert decoding_revision(tmp_path) == ""
    assert decoding_revision(tmp_path / "gone.mp4") == ""


def test_a_header_in_front_of_the_pictures_is_read_as_well(tmp_path):
    path = write_clip(
        tmp_path / "a.mp4", 4, pixel_format="yuv444p", container_options={"movflags": "faststart"}
    )
    assert decoding_revision(path) == REVISION


def test_an_avi_without_an_index_may_have_gaps(tmp_path):
    path = tmp_path / "cut.avi"
    path.write_bytes(clip("mpeg4.avi").read_bytes()[:8000])
    assert decoding_revision(path) == REVISION
