import os
from dataclasses import fields

import numpy as np
import pytest
from clips import CLIPS, clip
from numbered_videos import CLOSED_GOP, numbers_of, write_clip

from tango_core.video import FrameSpec, VideoDecodeError, decode_frames
from tango_core.video.index import _packets_of_mov, read_index
from tango_core.video.reader import opened, read_packets


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


def packets_of_mov(path):
    with opened(path) as (container, stream):
        return _packets_of_mov(path, container, stream)


@pytest.mark.parametrize("name", [name for name in CLIPS if name.endswith((".mp4", ".mov"))])
def test_the_tables_of_an_mp4_say_what_reading_it_says(name):
    path = str(clip(name))
    try:
        packets = packets_of_mov(path)
    except VideoDecodeError:
        return
    if packets is None:
        return
    with opened(path) as (container, stream):
        read = list(read_packets(container, stream, []))
    assert packets["pts"].tolist() == [packet.pts for packet in read]
    assert packets["dts"].tolist() == [packet.dts for packet in read]
    assert packets["duration"].tolist() == [packet.duration for packet in read]
    assert packets["is_keyframe"].tolist() == [packet.is_keyframe for packet in read]
    assert packets["position"].tolist() == [packet.pos for packet in read]


@pytest.mark.parametrize("name", ["closed_gop.mp4", "open_gop.mp4", "variable_rate.mp4"])
def test_an_ordinary_mp4_is_not_read_for_its_index(name):
    assert packets_of_mov(str(clip(name))) is not None


def test_the_index_of_a_long_file_is_found_again_until_the_file_changes(tmp_path, monkeypatch):
    monkeypatch.setattr("tango_core.video.index._STORED_FROM", 10)
    path, folder = str(write_clip(tmp_path / "a.mkv", 24, options=CLOSED_GOP)), tmp_path / "indices"
    first = read_index(path, str(folder))
    (stored,) = folder.glob("*/*.npz")
    status = os.stat(path)
    with open(path, "r+b") as file:
        file.write(bytes(status.st_size))
    os.utime(path, ns=(status.st_atime_ns, status.st_mtime_ns))
    again = read_index(path, str(folder))  # nothing of the file is left
    for one in fields(first):
        np.testing.assert_array_equal(getattr(again, one.name), getattr(first, one.name))
    stored.write_bytes(b"damaged")
    with pytest.raises(VideoDecodeError):
        read_index(path, str(folder))
    write_clip(tmp_path / "a.mkv", 12, options=CLOSED_GOP)
    assert len(read_index(path, str(folder)).shown) == 12


def test_a_damaged_stored_index_is_made_again(tmp_path, monkeypatch):
    monkeypatch.setattr("tango_core.video.index._STORED_FROM", 10)
    path = str(write_clip(tmp_path / "a.mkv", 24, options=CLOSED_GOP))
    first = read_index(path, str(tmp_path))
    (stored,) = tmp_path.glob("*/*.npz")
    content = stored.read_bytes()
    for at in range(0, len(content), 7):
        changed = bytearray(content)
        changed[at] ^= 0b10101
        for damaged in (changed, content[:at]):
            stored.write_bytes(damaged)
            np.testing.assert_array_equal(read_index(path, str(tmp_path)).shown, first.shown)


def test_the_index_of_a_short_file_is_not_stored(tmp_path):
    read_index(str(clip("closed_gop.mp4")), str(tmp_path))
    assert not any(tmp_path.iterdir())


def test_frames_hidden_by_an_edit_list_are_not_counted():
    info = read_index(str(clip("edit_list.mp4")))
    assert len(info.shown) == 120 - 27
    assert info.duration_s == pytest.approx((120 - 27) / 24)


def test_a_cover_picture_is_no_video_stream():
    info = read_index(str(clip("cover.mp4")))
    assert info.codec == "h264"
    assert info.decord_doubt == "2 video streams"
