"""Where a clip starts and ends, which of its frames a rule takes, which library decodes it."""

import sys
from importlib.util import find_spec

import numpy as np
import pytest
from clips import AFTER_DROPS, WITH_DROPS, clip
from numbered_videos import numbers_of

from tango_core.video import FrameSpec, VideoDecodeError, decode_frames, decoder_versions
from tango_core.video.index import read_index


@pytest.mark.parametrize("decoder", ["auto", "pyav"])
@pytest.mark.parametrize(
    ("bounds", "numbers"),
    [
        ((1.0, 2.0), range(24, 49)),
        ((1.01, 1.99), range(25, 48)),
        ((4.5, 100.0), range(108, 120)),
        ((4.5, float("inf")), range(108, 120)),
        ((2.0, 2.0), [48]),
        ((2.03, 2.03), [49]),
        ((4.99, 5.0), [119]),
    ],
)
def test_a_clip_is_what_is_shown_between_its_bounds(bounds, numbers, decoder):
    frames = decode_frames(
        str(clip("closed_gop.mp4")), FrameSpec(len(numbers), decoder=decoder), bounds
    )
    assert numbers_of(frames.pixels) == list(numbers)
    np.testing.assert_allclose(frames.timestamps, np.array(numbers) / 24, atol=1e-4)


def test_bounds_count_from_the_first_frame_that_an_edit_list_shows():
    frames = decode_frames(str(clip("edit_list.mp4")), FrameSpec(2), (1.0, 2.0))
    assert numbers_of(frames.pixels) == [27 + 24, 27 + 48]


def test_a_still_at_the_end_is_shown_as_long_as_the_file_says():
    path = str(clip("long_last_frame.mp4"))
    assert read_index(path).duration_s == pytest.approx(119 / 24 + 9)
    frames = decode_frames(path, FrameSpec(4), (8.0, 10.0))
    assert numbers_of(frames.pixels) == [119] * 4
    assert frames.warnings == ()
    assert numbers_of(decode_frames(path, FrameSpec(2)).pixels) == [0, 119]


@pytest.mark.parametrize(
    ("sampling", "bounds", "numbers"),
    [
        ("per_second", None, [0, 24, 48, 72, 96]),
        ("per_second", (1.0, 3.0), [24, 48, 72]),
        ("thinned", (1.0, 2.99), [24, 40, 55, 71]),
        ("inner", (1.0, 2.99), [29, 34, 40, 45, 50, 56, 61, 66]),
        ("middles", (1.0, 3.0), [27, 33, 39, 45, 51, 57, 63, 69]),
        ("middles", (1.01, 1.03), [24, 24, 24, 24, 24, 25, 25, 25]),
    ],
)
def test_rules_count_frames_from_the_start_of_the_clip(sampling, bounds, numbers):
    """24 frames per second; MVBench's own rule has bounds in whole frames."""
    frames = decode_frames(str(clip("closed_gop.mp4")), FrameSpec(8, sampling=sampling), bounds)
    assert numbers_of(frames.pixels) == numbers


EXACT_BY_DECORD = ("drops_cinepak.avi", "drops_mjpeg.avi", "drops_mpeg4.avi", "drops_vp9.avi")


@pytest.mark.parametrize("name", WITH_DROPS)
def test_every_frame_is_shown_at_its_own_number(name):
    frames = decode_frames(str(clip(name)), FrameSpec(60))
    assert numbers_of(frames.pixels) == AFTER_DROPS
    np.testing.assert_allclose(frames.timestamps, np.array(AFTER_DROPS) / 15, atol=1e-9)


@pytest.mark.parametrize("name", WITH_DROPS)
def test_a_clip_behind_drops_holds_the_frames_of_its_seconds(name):
    frames = decode_frames(str(clip(name)), FrameSpec(16), (6.7, 7.7))
    assert numbers_of(frames.pixels)[0] == 101
    assert numbers_of(frames.pixels)[-1] == 115


def test_a_packet_that_is_never_shown_does_not_shift_the_frames_behind_it():
    """120 packets, of which number 60 is never shown."""
    frames = decode_frames(str(clip("hidden_frame.avi")), FrameSpec(8), (3.0, 4.0))
    assert numbers_of(frames.pixels)[0] == 72
    expected = np.array(numbers_of(frames.pixels)) / 24
    np.testing.assert_allclose(frames.timestamps, expected, atol=1e-3)  # the file counts in ms


def test_without_drops_times_are_index_over_rate_to_the_bit():
    frames = decode_frames(str(clip("mpeg4.avi")), FrameSpec(60))
    np.testing.assert_array_equal(frames.timestamps, np.arange(60) / 24.0)


def test_length_and_rate_count_what_was_dropped():
    assert read_index(str(clip("drops_cinepak.avi"))).rate == pytest.approx(7.5)
    frames = decode_frames(str(clip("drops_cinepak.avi")), FrameSpec(4))
    assert frames.source.duration_s == pytest.approx(8.0)


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


@pytest.mark.skipif(find_spec("decord") is None, reason="decord has no wheel here")
class TestDecordOnRequest:
    @pytest.mark.parametrize("name", EXACT_BY_DECORD)
    def test_it_gets_the_times_from_the_numbers(self, name):
        frames = decode_frames(str(clip(name)), FrameSpec(60, decoder="decord"))
        np.testing.assert_allclose(frames.timestamps, np.array(AFTER_DROPS) / 15, atol=1e-9)

    @pytest.mark.parametrize("name", sorted(WITH_DROPS.keys() - set(EXACT_BY_DECORD)))
    def test_it_is_refused_where_frames_cannot_be_told_apart(self, name):
        with pytest.raises(VideoDecodeError, match=r"dropped frames; .*decoder: auto"):
            decode_frames(str(clip(name)), FrameSpec(60, decoder="decord"))

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
