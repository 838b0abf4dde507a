"""Streams that are damaged inside: the frames say so, and healthy ones never do."""

import numpy as np
import pytest
from clips import CLIPS, SHOWN, WITH_DROPS, clip
from numbered_videos import CLOSED_GOP, numbers_of, write_clip

from tango_core.video import FrameSpec, decode_frames
from tango_core.video.readers import pyav
from tango_core.video.readers.errors import ReaderError
from tango_core.video.readers.probe import read_index

HEALTHY = [*SHOWN, *WITH_DROPS, "hidden_frame.webm", "hidden_frame.avi", "old_x264.mp4"]
CUT_OFF = ["half.mp4", "half.mkv"]
DAMAGED = [name for name in CLIPS if name.startswith(("hole.", "flipped.", "lost_", "damaged."))]


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


def test_a_clip_in_a_hole_is_damaged_although_a_neighbour_can_be_decoded():
    frames = decode_frames(str(clip("hole.webm")), FrameSpec(4), (2.5, 2.6))
    assert "has lost its frames between" in frames.damage[0]


@pytest.mark.parametrize("name", ["hole.mp4", "flipped.ts", "damaged.mp4"])
def test_damage_found_while_seeking_is_decoded_again_from_the_start(name):
    path = str(clip(name))
    index = read_index(path)
    reader = pyav.IndexedReader(path, index)
    with pytest.raises(ReaderError, match=r"damaged|did not come out|wrong order"):
        list(reader.fetch(np.arange(len(index.shown))))
    reader.close()
    in_order = pyav.SequentialReader(path, index)
    expected = [picture for _, picture in in_order.fetch(np.arange(len(in_order.times)))]
    frames = decode_frames(path, FrameSpec(len(expected), decoder="pyav"))
    np.testing.assert_array_equal(frames.pixels, np.stack(expected))


def test_a_variable_rate_is_no_hole(tmp_path):
    """Matroska without frames for two seconds, as screen recorders write it."""
    times = [*range(0, 1000, 40), *range(3000, 4000, 40)]
    path = write_clip(tmp_path / "still.mkv", 50, options=CLOSED_GOP, times_ms=times)
    assert decode_frames(str(path), FrameSpec(8)).damage == ()
