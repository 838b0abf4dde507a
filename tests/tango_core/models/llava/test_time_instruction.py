import numpy as np
import pytest
import torch
from clips import clip as video_file
from numbered_videos import draw

from tango_core.models.llava.layout import time_instruction
from tango_core.types import ClipSource, CompressedVideo
from tango_core.video import FrameSpec, decode_frames

SOURCE = ClipSource(duration_s=12.0, frame_height=360)


def clip(times, source=SOURCE):
    """A clip of which no token is left; the sentence does not depend on tokens."""
    return CompressedVideo(
        tokens=torch.empty(0, 4),
        indices=torch.empty(0, dtype=torch.int64),
        grid=(len(times), 2, 2),
        timestamps=torch.tensor(times, dtype=torch.float64),
        source=source,
    )


def test_times_of_a_clip_count_from_its_first_frame():
    """The harnesses cut a bounded clip out before they look at its frames."""
    spoken = time_instruction(clip([61.5, 62.25, 63.5]), "correct", 384)
    assert "located at 0.00s,0.75s,2.00s." in spoken


def test_an_unknown_source_is_as_long_as_its_last_frame_and_as_high_as_the_models_frames():
    spoken = time_instruction(clip([4.0, 5.0, 6.5], source=None), "vlmevalkit", 384)
    assert spoken.startswith("The video lasts for 2.50 seconds,and 384 frames")


@pytest.mark.parametrize(
    ("name", "bounds", "count"),
    [
        ("closed_gop.mp4", None, 120),
        ("closed_gop.mkv", None, 120),
        ("vp9.webm", None, 120),
        ("transport_stream.ts", None, 60),
        ("closed_gop.mp4", (1.0, 2.0), 25),
    ],
)
def test_a_decoded_clip_is_described_as_the_harness_describes_it(name, bounds, count):
    """Index over rate, of a file of `count` frames at 24 per second; height instead of number."""
    frames = decode_frames(str(video_file(name)), FrameSpec(16, size=(8, 8)), bounds)
    indices = np.linspace(0, count - 1, 16, dtype=int)
    located = ",".join(f"{index / 24:.2f}s" for index in indices)
    spoken = time_instruction(clip(frames.timestamps.tolist(), frames.source), "vlmevalkit", 8)
    assert spoken == (
        f"The video lasts for {count / 24:.2f} seconds,and {draw(0).shape[0]} frames are uniformly "
        f"sampled from it.These frames are located at {located}."
        "Please answer the following questions related to this video.\n"
    )
