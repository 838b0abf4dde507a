"""Streams that are damaged inside: the frames say so, and healthy ones never do."""

import os
import random

import numpy as np
import pytest
from clips import CLIPS, SHOWN, WITH_DROPS, clip
from numbered_videos import CLOSED_GOP, numbers_of, write_clip

from tango_core.video import FrameSpec, VideoDecodeError, decode_frames, pyav
from tango_core.video.index import read_index
from tango_core.video.pyav import SequentialReader
from tango_core.video.reader import ReaderError

HEALTHY = [*SHOWN, *WITH_DROPS, "hidden_frame.webm", "hidden_frame.avi", "old_x264.mp4"]
CUT_OFF = ["half.mp4", "half.mkv", "half.avi"]
DAMAGED = [name for name in CLIPS if name.startswith(("hole", "flipped.", "lost_", "damaged."))]


@pytest.mark.parametrize("name", [*HEALTHY, *CUT_OFF])
def test_a_healthy_or_a_short_file_is_not_called_damaged(name):
    whole = decode_frames(str(clip(name)), FrameSpec(16))
    middle = float(whole.timestamps[-1]) / 2
    part = decode_frames(str(clip(name)), FrameSpec(4), (middle, middle + 0.5))
    assert whole.damage == part.damage == ()


@pytest.mark.parametrize("name", DAMAGED)
def test_a_damaged_file_is_called_damaged(name):
    frames = decode_frames(str(clip(name)), FrameSpec(16, decoder="pyav"))
    assert frames.damage
    assert all("\n" not in reason for reason in frames.damage)


@pytest.mark.parametrize("name", ["hole.webm", "hole.mp4", "damaged.mp4"])
def test_a_clip_away_from_the_damage_is_healthy(name):
    frames = decode_frames(str(clip(name)), FrameSpec(4), (0.2, 0.8))
    assert frames.damage == ()
    assert numbers_of(frames.pixels) == [5, 9, 14, 19]


@pytest.mark.parametrize("name", ["hole.mp4", "flipped.ts", "damaged.mp4"])
def test_damage_found_while_seeking_is_decoded_again_from_the_start(name):
    path = str(clip(name))
    index = read_index(path)
    reader = pyav.IndexedReader(path, index)
    with pytest.raises(ReaderError, match=r"damaged|did not come out|wrong order"):
        list(reader.fetch(np.arange(len(index.shown))))
    reader.close()
    in_order = SequentialReader(path, index)
    expected = [picture for _, picture in in_order.fetch(np.arange(len(in_order.times)))]
    frames = decode_frames(path, FrameSpec(len(expected), decoder="pyav"))
    np.testing.assert_array_equal(frames.pixels, np.stack(expected))


def test_behind_a_hole_an_avi_has_wrong_times_and_so_is_damaged():
    """FFmpeg goes on counting where it finds the next packet."""
    frames = decode_frames(str(clip("hole.avi")), FrameSpec(4), (5.5, 6.5))
    assert frames.damage[0] == "the file has lost frames between 4.00 s and 8.00 s"
    assert decode_frames(str(clip("hole.avi")), FrameSpec(4), (0.0, 1.0)).damage == ()


def _with_two_changed_bytes(path, source, seed):
    """Copy a clip with two bytes of its pictures changed, as a bad disk or cable leaves it."""
    data, rng = bytearray(clip(source).read_bytes()), random.Random(seed)
    for _ in range(2):
        at = rng.randrange(len(data) // 10, len(data) * 85 // 100)
        data[at] ^= rng.randrange(1, 256)
    path.write_bytes(bytes(data))


@pytest.mark.parametrize("source", ["closed_gop.mp4", "no_b_frames.mp4", "closed_gop.mkv"])
def test_changed_bytes_of_h264_are_never_shown_as_if_they_were_right(source, tmp_path):
    """decord answers 13 of these 20 mp4 files with wrong pictures and does not know."""
    whole = decode_frames(str(clip(source)), FrameSpec(30))
    num_damaged = 0
    for seed in range(20):
        path = tmp_path / f"{seed}-{source}"
        _with_two_changed_bytes(path, source, seed)
        frames = decode_frames(str(path), FrameSpec(30))
        num_damaged += bool(frames.damage)
        if not frames.damage:
            np.testing.assert_array_equal(frames.pixels, whole.pixels)
    assert num_damaged >= 15


@pytest.mark.parametrize(
    ("source", "seed"), [("h264.avi", 3), ("transport_stream.ts", 7), ("drops_mjpeg.avi", 0)]
)
def test_a_picture_that_the_decoder_invents_without_a_word_is_damage(source, seed, tmp_path):
    """FFmpeg says so in its log alone, unless it is told to refuse."""
    path = tmp_path / source
    _with_two_changed_bytes(path, source, seed)
    assert decode_frames(str(path), FrameSpec(60)).damage


def test_a_variable_rate_is_no_hole(tmp_path):
    """Matroska without frames for two seconds, as screen recorders write it."""
    times = [*range(0, 1000, 40), *range(3000, 4000, 40)]
    path = write_clip(tmp_path / "still.mkv", 50, options=CLOSED_GOP, times_ms=times)
    assert decode_frames(str(path), FrameSpec(8)).damage == ()


@pytest.mark.parametrize(
    ("name", "reason"),
    [
        ("empty.mp4", "the file is empty"),
        ("text.mp4", "not a video that FFmpeg can read"),
        ("sound.mp4", r"holds no video stream \(found: audio\)"),
        ("no_index.mp4", r"index \(moov\) is missing or damaged; .* probably truncated"),
        ("a_few_frames.mp4", "of 32 frames decoded; the file is probably truncated"),
    ],
)
@pytest.mark.parametrize("decoder", ["auto", "pyav"])
def test_a_useless_file_is_an_error_of_one_line_that_names_it(name, reason, decoder):
    with pytest.raises(VideoDecodeError, match=reason) as caught:
        decode_frames(str(clip(name)), FrameSpec(32, decoder=decoder))
    assert str(caught.value).startswith(f"{clip(name)}: ")
    assert "\n" not in str(caught.value)


@pytest.mark.skipif(os.geteuid() == 0, reason="root may read everything")
def test_a_forbidden_file_is_an_error_that_says_so(tmp_path):
    path = tmp_path / "secret.mp4"
    path.write_bytes(clip("five_frames.mp4").read_bytes())
    path.chmod(0)
    with pytest.raises(VideoDecodeError, match="Permission denied"):
        decode_frames(str(path), FrameSpec(4))


@pytest.mark.parametrize("name", ["half.mp4", "half.mkv"])
def test_half_a_file_is_used_as_far_as_it_goes_and_says_so(name):
    frames = decode_frames(str(clip(name)), FrameSpec(32))
    numbers = numbers_of(frames.pixels)
    assert numbers[0] == 0
    assert numbers == sorted(numbers)
    assert 40 <= numbers[-1] < 72
    assert any("s of 5.00 s announced" in warning for warning in frames.warnings)


@pytest.mark.parametrize("name", ["half.mp4", "half.mkv"])
def test_a_clip_in_the_missing_half_is_refused(name):
    with pytest.raises(VideoDecodeError, match=r"clip starts at 4 s .* probably truncated"):
        decode_frames(str(clip(name)), FrameSpec(4), (4.0, 5.0))


@pytest.mark.parametrize("name", ["half.mp4", "half.mkv"])
def test_a_clip_in_the_intact_half_needs_no_warning(name):
    frames = decode_frames(str(clip(name)), FrameSpec(13), (0.5, 1.0))
    assert numbers_of(frames.pixels) == list(range(12, 25))
    assert not any("announced" in warning for warning in frames.warnings)


def test_damage_in_the_middle_costs_frames_and_is_noted():
    frames = decode_frames(str(clip("damaged.mp4")), FrameSpec(120))
    assert frames.pixels.shape[0] == 120
    assert any("could not be decoded" in warning for warning in frames.warnings)
    numbers = numbers_of(frames.pixels)
    assert set(range(24)) <= set(numbers)


def test_a_clip_in_a_hole_is_damaged_although_a_neighbour_can_be_decoded():
    frames = decode_frames(str(clip("hole.webm")), FrameSpec(4), (2.5, 2.6))
    assert "has lost frames between" in frames.damage[0]
