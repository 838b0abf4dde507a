"""Which library decodes a file, and what a missing or wrong one means."""

import sys
from importlib.util import find_spec

import pytest
from clips import clip, shown_numbers
from fresh_python import printed_by
from numbered_videos import numbers_of

from tango_core.video import FrameSpec, VideoDecodeError, decode_frames, decoder_versions, probe
from tango_core.video.readers import decord

needs_decord = pytest.mark.skipif(decord.load() is None, reason="decord has no wheel here")


@needs_decord
class TestChoiceOfDecoder:
    @pytest.mark.parametrize("name", ["closed_gop.mp4", "closed_gop.mkv", "faststart.mp4"])
    def test_auto_takes_decord_where_it_is_exact(self, name):
        assert decode_frames(str(clip(name)), FrameSpec(4)).decoder.startswith("decord ")

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
        ],
    )
    def test_auto_takes_pyav_where_decord_is_in_doubt(self, name, doubt):
        assert probe(str(clip(name))).decord_doubt == doubt
        assert decode_frames(str(clip(name)), FrameSpec(4)).decoder.startswith("pyav ")

    def test_decord_on_request_decodes_but_warns(self):
        frames = decode_frames(str(clip("open_gop.mp4")), FrameSpec(32, decoder="decord"))
        assert frames.decoder.startswith("decord ")
        assert numbers_of(frames.pixels) != shown_numbers("open_gop.mp4", 32)
        assert frames.warnings == (
            "decord may return neighbouring frames on this file: open groups of pictures",
        )

    def test_decord_on_request_fails_where_it_cannot_read(self):
        with pytest.raises(VideoDecodeError, match=r"av1\.mp4: decord cannot open it"):
            decode_frames(str(clip("av1.mp4")), FrameSpec(4, decoder="decord"))

    def test_auto_falls_back_to_pyav_where_decord_fails(self):
        """The last picture of this file cannot be decoded, which no look at its packets tells."""
        frames = decode_frames(str(clip("no_last_picture.mp4")), FrameSpec(8))
        assert frames.decoder.startswith("pyav ")
        assert any("decord" in warning for warning in frames.warnings)

    def test_the_cache_identity_names_both_libraries(self):
        assert decoder_versions("auto") == (
            f"auto({decoder_versions('decord')}, {decoder_versions('pyav')})"
        )


def test_without_decord_auto_means_pyav(monkeypatch):
    monkeypatch.setitem(sys.modules, "decord", None)  # an import of None raises ImportError
    frames = decode_frames(str(clip("closed_gop.mp4")), FrameSpec(4))
    assert frames.decoder == decoder_versions("pyav")
    assert decoder_versions("auto") == f"auto({decoder_versions('pyav')})"
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
