"""AVI numbers its packets, and the number of a dropped frame has none: times follow the numbers."""

import numpy as np
import pytest
from clips import AFTER_DROPS, WITH_DROPS, clip
from numbered_videos import numbers_of

from tango_core.video import FrameSpec, VideoDecodeError, decode_frames
from tango_core.video.index import read_index
from tango_core.video.optional import load_decord

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


def test_length_and_rate_count_what_was_dropped():
    assert read_index(str(clip("drops_cinepak.avi"))).rate == pytest.approx(7.5)
    frames = decode_frames(str(clip("drops_cinepak.avi")), FrameSpec(4))
    assert frames.source.duration_s == pytest.approx(8.0)


@pytest.mark.skipif(load_decord() is None, reason="decord has no wheel here")
class TestDecordOnRequest:
    @pytest.mark.parametrize("name", EXACT_BY_DECORD)
    def test_it_gets_the_times_from_the_numbers(self, name):
        frames = decode_frames(str(clip(name)), FrameSpec(60, decoder="decord"))
        np.testing.assert_allclose(frames.timestamps, np.array(AFTER_DROPS) / 15, atol=1e-9)

    @pytest.mark.parametrize("name", sorted(WITH_DROPS.keys() - set(EXACT_BY_DECORD)))
    def test_it_is_refused_where_frames_cannot_be_told_apart(self, name):
        with pytest.raises(VideoDecodeError, match=r"dropped frames in avi.*decoder: auto"):
            decode_frames(str(clip(name)), FrameSpec(60, decoder="decord"))


def test_a_packet_that_is_never_shown_does_not_shift_the_frames_behind_it():
    """120 packets, of which number 60 is never shown."""
    frames = decode_frames(str(clip("hidden_frame.avi")), FrameSpec(8), (3.0, 4.0))
    assert numbers_of(frames.pixels)[0] == 72
    expected = np.array(numbers_of(frames.pixels)) / 24
    np.testing.assert_allclose(frames.timestamps, expected, atol=1e-3)  # the file counts in ms


def test_without_drops_times_are_index_over_rate_to_the_bit():
    frames = decode_frames(str(clip("mpeg4.avi")), FrameSpec(60))
    np.testing.assert_array_equal(frames.timestamps, np.arange(60) / 24.0)
