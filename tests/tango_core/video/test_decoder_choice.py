"""Which library decodes a file, and what a missing or wrong one means."""

import sys
from importlib.util import find_spec

import pytest
from clips import clip, shown_numbers
from numbered_videos import numbers_of

from tango_core.video import FrameSpec, VideoDecodeError, decode_frames, decoder_versions
from tango_core.video.index import read_index

needs_decord = pytest.mark.skipif(find_spec("decord") is None, reason="decord has no wheel here")


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
        with pytest.raises(VideoDecodeError, match=r"H\.264 4:4:4 wrong; .* auto") as caught:
            decode_frames(str(clip(name)), FrameSpec(4, decoder="decord"))
        assert str(caught.value).startswith(f"{clip(name)}: ")

    def test_a_hole_is_seen_all_the_same(self):
        frames = decode_frames(str(clip("hole.mkv")), FrameSpec(8, decoder="decord"))
        assert "has lost frames between" in frames.damage[0]


def test_decord_where_it_is_not_installed_is_named(monkeypatch):
    monkeypatch.setitem(sys.modules, "decord", None)  # an import of None raises ImportError
    with pytest.raises(ValueError, match="decoder 'decord' does not load"):
        decode_frames(str(clip("closed_gop.mp4")), FrameSpec(4, decoder="decord"))


@pytest.mark.skipif(find_spec("torchcodec") is not None, reason="the extra is installed")
def test_torchcodec_without_its_extra_names_the_extra():
    for attempt in (
        lambda: decode_frames(str(clip("closed_gop.mp4")), FrameSpec(4, decoder="torchcodec")),
        lambda: decoder_versions("torchcodec"),
    ):
        with pytest.raises(ValueError, match=r"pip install 'tango-video\[torchcodec\]'"):
            attempt()


pytestmark = pytest.mark.skipif(find_spec("decord") is None, reason="decord has no wheel here")
