import numpy as np
import pytest
from clips import clip
from numbered_videos import number_of

from tango_core.video.optional import DecordReader, load_decord
from tango_core.video.reader import ReaderError

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
