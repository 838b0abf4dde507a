"""Frames, times and sizes of whole files, and how decoding treats its process."""

import os
from itertools import product
from pathlib import Path

import numpy as np
import pytest
from clips import SHOWN, clip, shown_numbers
from fresh_python import printed_by
from numbered_videos import draw, numbers_of, write_clip, write_folder, write_rotated
from PIL import Image

from tango_core.video import FrameSpec, VideoDecodeError, decode_frames, headers
from tango_core.video.index import read_index
from tango_core.video.reader import list_images


@pytest.mark.parametrize("name", SHOWN)
def test_every_frame_is_the_one_asked_for(name):
    for num_frames, decoder in product([1, 2, 7, 32], ["auto", "pyav"]):
        frames = decode_frames(str(clip(name)), FrameSpec(num_frames, decoder=decoder))
        assert numbers_of(frames.pixels) == shown_numbers(name, num_frames), (num_frames, decoder)
        assert (np.diff(frames.timestamps) >= 0).all()


@pytest.mark.parametrize("name", ["variable_rate.mp4", "variable_rate.mkv"])
def test_times_are_the_streams_own_and_not_index_over_rate(name):
    frames = decode_frames(str(clip(name)), FrameSpec(120))
    steps = np.random.default_rng(0).integers(15, 120, 120)
    expected = (np.cumsum(steps) - steps[0]) / 1000
    np.testing.assert_allclose(frames.timestamps, expected, atol=1e-3)
    assert np.abs(frames.timestamps - np.arange(120) / 24).max() > 1


def test_times_count_from_the_start_of_the_file_where_the_clock_does_not():
    """Transport streams start at 1.4 s or later by their own clock."""
    frames = decode_frames(str(clip("transport_stream.ts")), FrameSpec(60))
    np.testing.assert_allclose(frames.timestamps, np.arange(60) / 24, atol=1e-4)


def test_a_clock_that_begins_late_does_not_make_a_whole_file_a_truncated_one(tmp_path):
    """Matroska's duration is the time of its end, 14 s here; the video takes 4."""
    times = [10_000 + 100 * number for number in range(40)]
    path = str(write_clip(tmp_path / "late.mkv", 40, rate=10, times_ms=times))
    frames = decode_frames(path, FrameSpec(40))
    np.testing.assert_allclose(frames.timestamps, np.arange(40) / 10, atol=1e-3)
    assert frames.warnings == ()
    assert read_index(path).duration_s == pytest.approx(4.0, abs=0.11)
    last = decode_frames(path, FrameSpec(4), (3.9, 60.0))
    assert numbers_of(last.pixels) == [39] * 4
    with pytest.raises(VideoDecodeError, match=r"starts at 5 s but the video ends at 4\.00 s"):
        decode_frames(path, FrameSpec(4), (5.0, 60.0))


@pytest.mark.parametrize(
    ("name", "bounds", "duration_s"),
    [
        ("closed_gop.mp4", None, 120 / 24),
        ("vp9.webm", None, 120 / 24),
        ("closed_gop.mp4", (1.0, 2.0), 25 / 24),
        ("one_frame.mp4", None, 1 / 24),
    ],
)
def test_length_and_height_are_those_of_the_file_and_not_of_the_samples(name, bounds, duration_s):
    frames = decode_frames(str(clip(name)), FrameSpec(4, size=(10, 12)), bounds)
    assert frames.pixels.shape[1:3] == (10, 12)
    assert frames.source.frame_height == draw(0).shape[0]
    assert frames.source.duration_s == pytest.approx(duration_s, rel=1e-3)


def test_decord_and_pyav_give_equal_bytes():
    pytest.importorskip("decord")
    for name in ("closed_gop.mp4", "closed_gop.mkv", "rotated.mp4", "bt709.mp4"):
        by_decord, by_pyav = (
            decode_frames(str(clip(name)), FrameSpec(16, size=(98, 98), decoder=decoder))
            for decoder in ("decord", "pyav")
        )
        np.testing.assert_array_equal(by_decord.pixels, by_pyav.pixels)
        np.testing.assert_array_equal(by_decord.timestamps, by_pyav.timestamps)


@pytest.mark.parametrize("decoder", ["auto", "pyav"])
def test_a_phone_video_is_turned_upright(decoder):
    frames = decode_frames(str(clip("rotated.mp4")), FrameSpec(4, decoder=decoder))
    assert frames.pixels.shape == (4, 128, 64, 3)
    turned_back = np.rot90(frames.pixels, axes=(1, 2))
    assert numbers_of(turned_back) == [0, 39, 79, 119]


@pytest.mark.parametrize(
    ("matrix", "shown"),
    [
        ((-1, 0, 0, 1), np.fliplr),
        ((1, 0, 0, -1), np.flipud),
        ((0, 1, 1, 0), lambda picture: picture.transpose(1, 0, 2)),
        ((0, -1, -1, 0), lambda picture: np.rot90(picture, 2).transpose(1, 0, 2)),
        ((0, -1, 1, 0), lambda picture: np.rot90(picture, 1)),
        ((-1, 0, 0, -1), lambda picture: np.rot90(picture, 2)),
    ],
    ids=["left-right", "up-down", "diagonal", "other diagonal", "turned", "upside down"],
)
def test_pictures_are_shown_as_players_show_them(tmp_path, matrix, shown):
    """The display matrix says where a pixel goes; half of all matrices mirror."""
    path = write_rotated(tmp_path / "clip.mp4", clip("closed_gop.mp4"), matrix)
    stored = decode_frames(str(clip("closed_gop.mp4")), FrameSpec(2)).pixels
    frames = decode_frames(str(path), FrameSpec(2)).pixels
    np.testing.assert_array_equal(frames, np.stack([shown(picture) for picture in stored]))


def test_other_decoders_refuse_what_they_would_not_mirror():
    with pytest.raises(VideoDecodeError, match="says to mirror it; use"):
        decode_frames(str(clip("mirrored.mp4")), FrameSpec(2, decoder="decord"))


@pytest.mark.parametrize("size", ["to the end", "64 bits"])
def test_a_movie_header_may_state_its_size_in_three_ways(tmp_path, size):
    content = clip("mirrored.mp4").read_bytes()
    at = content.index(b"moov") - 4
    length = int.from_bytes(content[at : at + 4], "big")
    assert at + length == len(content)
    stated = (0).to_bytes(4, "big") + b"moov"
    if size == "64 bits":
        stated = (1).to_bytes(4, "big") + b"moov" + (length + 8).to_bytes(8, "big")
    changed = tmp_path / "changed.mp4"
    changed.write_bytes(content[:at] + stated + content[at + 8 :])
    assert headers.is_mirrored(str(changed))


@pytest.mark.skipif(not Path("/proc/self/task").is_dir(), reason="threads are counted on Linux")
def test_no_frame_outlives_its_clip():
    """A frame that only a search for garbage ends keeps the threads that converted it."""
    code = (
        "import gc, os, sys\n"
        "from tango_core import FrameSpec, decode_frames\n"
        "gc.disable()\n"
        "counts = set()\n"
        "for path in 3 * sys.argv[1:]:\n"
        "    decode_frames(path, FrameSpec(8))\n"
        "    counts.add(len(os.listdir('/proc/self/task')))\n"
        "print(len(counts))\n"
    )
    names = ("closed_gop.mp4", "mirrored.mp4")
    assert printed_by(code, *(str(clip(name)) for name in names)) == "1"


def test_no_file_stays_open():
    before = len(os.listdir("/proc/self/fd")) if os.path.isdir("/proc/self/fd") else 0
    for name in ("closed_gop.mp4", "open_gop.mp4", "h264.avi", "half.mp4", "no_last_picture.mp4"):
        for _ in range(3):
            decode_frames(str(clip(name)), FrameSpec(4))
    after = len(os.listdir("/proc/self/fd")) if os.path.isdir("/proc/self/fd") else 0
    assert after <= before


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"num_frames": 0}, "num_frames must be 1 or larger, got 0"),
        ({"num_frames": 8, "sampling": "floor"}, "unknown sampling 'floor'; choose one of"),
        ({"num_frames": 8, "size": (4, 4), "max_pixels": 9}, "exclude each other"),
    ],
)
def test_impossible_settings_are_refused(options, message):
    with pytest.raises(ValueError, match=message):
        FrameSpec(**options)


def test_a_relative_name_with_a_colon_is_read(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    write_clip(tmp_path / "a:b.mp4", 24)
    for decoder in ("pyav", "decord"):
        frames = decode_frames("a:b.mp4", FrameSpec(4, decoder=decoder))
        assert numbers_of(frames.pixels) == [0, 7, 15, 23]


def test_bounds_are_image_numbers_at_three_per_second(tmp_path):
    folder = write_folder(tmp_path / "frames", 30)
    frames = decode_frames(str(folder), FrameSpec(7), (2.0, 4.0))
    assert numbers_of(frames.pixels) == [6, 7, 8, 9, 10, 11, 12]


def test_bounds_behind_the_last_image_are_refused(tmp_path):
    folder = write_folder(tmp_path / "frames", 6)
    with pytest.raises(VideoDecodeError, match=r"its images end at 2.00 s"):
        decode_frames(str(folder), FrameSpec(4), (3.0, 4.0))


def test_one_frame_per_second_is_for_files_only(tmp_path):
    """lmms-eval's LLaVA-Video spreads all its frames over a folder."""
    folder = write_folder(tmp_path / "frames", 30)
    frames = decode_frames(str(folder), FrameSpec(4, sampling="per_second"))
    assert numbers_of(frames.pixels) == numbers_of(decode_frames(str(folder), FrameSpec(4)).pixels)


def test_an_empty_folder_is_refused(tmp_path):
    with pytest.raises(VideoDecodeError, match="holds no frames"):
        decode_frames(str(tmp_path), FrameSpec(4))


def test_an_unreadable_image_is_named(tmp_path):
    folder = write_folder(tmp_path / "frames", 4)
    (folder / "00003.png").write_bytes(b"\x89PNG broken")
    with pytest.raises(VideoDecodeError, match=r"00003\.png: not a readable image"):
        decode_frames(str(folder), FrameSpec(4))


def test_images_of_other_sizes_are_stretched_to_the_first(tmp_path):
    folder = write_folder(tmp_path / "frames", 2)
    Image.fromarray(draw(2)).resize((64, 32), Image.Resampling.NEAREST).save(folder / "00002.png")
    frames = decode_frames(str(folder), FrameSpec(2))
    assert frames.pixels.shape == (2, 64, 128, 3)
    assert numbers_of(frames.pixels) == [1, 2]


@pytest.mark.parametrize(
    "names",
    [
        ["00001.jpg", "00002.jpg", "00010.jpg"],
        ["frame_1.png", "frame_2.png", "frame_10.png"],
        ["1.jpg", "2.jpeg", "10.JPG"],
        ["a1b2.jpg", "a1b10.jpg", "a2b1.jpg"],
        ["2.jpg", "cover.jpg"],
    ],
)
def test_images_are_listed_in_natural_order(names, tmp_path):
    for name in reversed(names):
        (tmp_path / name).touch()
    (tmp_path / ".hidden.jpg").touch()
    (tmp_path / "info.json").touch()
    assert [image.name for image in list_images(tmp_path)] == names
