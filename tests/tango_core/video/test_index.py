import numpy as np
import pytest
from clips import clip
from numbered_videos import numbers_of

from tango_core.video import FrameSpec, VideoDecodeError, decode_frames
from tango_core.video.index import read_index
from tango_core.video.reader import opened


def test_a_file_is_described_from_its_packets():
    info = read_index(str(clip("closed_gop.mp4")))
    assert (info.codec, info.pixel_format) == ("h264", "yuv420p")
    assert (info.stream, info.rate) == (0, 24.0)
    assert (len(info.shown), info.duration_s) == (120, 5.0)
    assert info.decord_doubt is None


def test_frames_hidden_by_an_edit_list_are_not_counted():
    info = read_index(str(clip("edit_list.mp4")))
    assert len(info.shown) == 120 - 27
    assert info.duration_s == pytest.approx((120 - 27) / 24)


def test_a_cover_picture_is_no_video_stream():
    info = read_index(str(clip("cover.mp4")))
    assert info.codec == "h264"
    assert info.decord_doubt == "2 video streams"


@pytest.mark.parametrize(
    "name", ["closed_gop.mp4", "open_gop.mp4", "h265_open_gop.mp4", "vp8.webm", "edit_list.mp4"]
)
def test_the_index_holds_exactly_the_times_that_decoding_yields(name):
    index = read_index(str(clip(name)))
    with opened(str(clip(name))) as (container, stream):
        decoded = [frame.pts for frame in container.decode(stream)]
    np.testing.assert_array_equal(index.shown, decoded)


def test_a_hidden_reference_frame_of_vp8_is_not_counted():
    path = str(clip("hidden_frame.webm"))
    assert len(read_index(path).shown) == 119
    numbers = numbers_of(decode_frames(path, FrameSpec(119)).pixels)
    assert numbers == [number for number in range(120) if number != 60]


@pytest.mark.parametrize("name", ["sound.mp4", "empty.mp4", "text.mp4", "no_index.mp4"])
def test_what_is_no_video_is_refused_by_name(name):
    with pytest.raises(VideoDecodeError, match=name):
        read_index(str(clip(name)))
