"""Which library decodes a file, and what a missing or wrong one means."""

import sys
from importlib.util import find_spec

import numpy as np
import pytest
from clips import clip, shown_numbers
from fresh_python import printed_by
from numbered_videos import number_of, numbers_of

from tango_core.video import FrameSpec, VideoDecodeError, decode_frames, decoder_versions
from tango_core.video.index import read_index
from tango_core.video.optional import DecordReader, load_decord
from tango_core.video.reader import ReaderError

needs_decord = pytest.mark.skipif(load_decord() is None, reason="decord has no wheel here")


@pytest.mark.parametrize("name", ["closed_gop.mp4", "closed_gop.mkv", "faststart.mp4"])
def test_auto_is_pyav_even_where_decord_is_exact(name):
    assert read_index(str(clip(name))).decord_doubt is None
    assert decode_frames(str(clip(name)), FrameSpec(4)).decoder == decoder_versions("pyav")
    assert decoder_versions("auto") == f"auto({decoder_versions('pyav')})"


@pytest.mark.parametrize(
    ("name", "doubt"),
    [
        ("open_gop.mp4", "open groups of pictures"),
        ("h265_open_gop.mp4", "codec hevc"),
        ("vp9.webm", "codec vp9"),
        ("variable_rate.mkv", "variable frame rate"),
        ("two_streams.mp4", "2 video streams"),
        ("edit_list.mp4", "an edit list hides frames"),
        ("transport_stream.ts", "container mpegts"),
        ("ten_bit.mp4", "pixel format yuv420p10le"),
        ("old_x264.mp4", "pixel format yuv444p"),
    ],
)
def test_what_decord_does_not_read_exactly_is_known(name, doubt):
    assert read_index(str(clip(name))).decord_doubt == doubt


@needs_decord
class TestDecordOnRequest:
    def test_it_decodes_a_doubtful_file_but_warns(self):
        frames = decode_frames(str(clip("open_gop.mp4")), FrameSpec(32, decoder="decord"))
        assert frames.decoder.startswith("decord ")
        assert numbers_of(frames.pixels) != shown_numbers("open_gop.mp4", 32)
        assert frames.warnings == (
            "decord may return neighbouring frames on this file: open groups of pictures",
        )

    def test_it_fails_where_it_cannot_read(self):
        with pytest.raises(VideoDecodeError, match=r"av1\.mp4: decord cannot open it"):
            decode_frames(str(clip("av1.mp4")), FrameSpec(4, decoder="decord"))

    @pytest.mark.parametrize("name", ["old_x264.mp4", "old_x264.mkv"])
    def test_it_refuses_what_it_reads_wrong(self, name):
        with pytest.raises(VideoDecodeError, match=r"H\.264 4:4:4 \(yuv444p\) .* auto") as caught:
            decode_frames(str(clip(name)), FrameSpec(4, decoder="decord"))
        assert str(caught.value).startswith(f"{clip(name)}: ")

    def test_a_hole_is_seen_all_the_same(self):
        frames = decode_frames(str(clip("hole.mkv")), FrameSpec(8, decoder="decord"))
        assert "has lost frames between" in frames.damage[0]


def test_decord_where_it_is_not_installed_is_named(monkeypatch):
    monkeypatch.setitem(sys.modules, "decord", None)  # an import of None raises ImportError
    with pytest.raises(ValueError, match="decoder 'decord' is not installed"):
        decode_frames(str(clip("closed_gop.mp4")), FrameSpec(4, decoder="decord"))


@pytest.mark.skipif(find_spec("torchcodec") is not None, reason="the extra is installed")
def test_torchcodec_without_its_extra_names_the_extra():
    for attempt in (
        lambda: decode_frames(str(clip("closed_gop.mp4")), FrameSpec(4, decoder="torchcodec")),
        lambda: decoder_versions("torchcodec"),
    ):
        with pytest.raises(ValueError, match=r"pip install 'tango-video\[torchcodec\]'"):
            attempt()


@pytest.mark.parametrize("order", [("av", "decord"), ("decord", "av")])
def test_av_and_decord_live_in_one_process_in_either_order(order):
    pytest.importorskip("decord")
    code = (
        f"import {order[0]}, {order[1]}, sys\n"
        "from tango_core.video import FrameSpec, decode_frames\n"
        "for decoder in ('decord', 'pyav'):\n"
        "    print(decode_frames(sys.argv[1], FrameSpec(8, decoder=decoder)).pixels.sum())\n"
    )
    first, second = printed_by(code, str(clip("closed_gop.mp4"))).split()
    assert first == second


pytestmark = pytest.mark.skipif(load_decord() is None, reason="decord has no wheel here")


def test_its_own_times_are_used_when_none_are_known():
    reader = DecordReader(str(clip("variable_rate.mp4")))
    steps = np.random.default_rng(0).integers(15, 120, 120)
    np.testing.assert_allclose(reader.times, (np.cumsum(steps) - steps[0]) / 1000, atol=2e-3)
    reader.close()


def test_times_that_make_no_sense_are_replaced_by_index_over_rate():
    """In AVI decord reports times of -4e17 seconds."""
    reader = DecordReader(str(clip("h264.avi")))
    np.testing.assert_allclose(reader.times, np.arange(60) / 24)
    reader.close()


def test_another_number_of_frames_is_refused():
    with pytest.raises(ReaderError, match="decord counts 120 frames, the file has 119"):
        DecordReader(str(clip("closed_gop.mp4")), np.arange(119) / 24)


def test_frames_come_one_at_a_time_and_in_order():
    path = str(clip("closed_gop.mp4"))
    reader = DecordReader(path)
    fetched = [(at, number_of(p)) for at, p in reader.fetch(np.array([3, 4, 90, 119]))]
    assert fetched == [(3, 3), (4, 4), (90, 90), (119, 119)]
    reader.close()
    reader.close()
