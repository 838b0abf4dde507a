"""Files that are empty, cut off, damaged or no video: an error that names them, or a warning."""

import os

import pytest
from clips import clip
from numbered_videos import numbers_of

from tango_core.video import FrameSpec, VideoDecodeError, decode_frames


class TestDamagedFiles:
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
    def test_a_useless_file_is_an_error_of_one_line_that_names_it(self, name, reason, decoder):
        with pytest.raises(VideoDecodeError, match=reason) as caught:
            decode_frames(str(clip(name)), FrameSpec(32, decoder=decoder))
        assert str(caught.value).startswith(f"{clip(name)}: ")
        assert "\n" not in str(caught.value)

    def test_a_missing_file_is_an_error_that_names_it(self, tmp_path):
        with pytest.raises(VideoDecodeError, match=r"gone\.mp4: no such file"):
            decode_frames(str(tmp_path / "gone.mp4"), FrameSpec(4))

    @pytest.mark.skipif(os.geteuid() == 0, reason="root may read everything")
    def test_a_forbidden_file_is_an_error_that_says_so(self, tmp_path):
        path = tmp_path / "secret.mp4"
        path.write_bytes(clip("five_frames.mp4").read_bytes())
        path.chmod(0)
        with pytest.raises(VideoDecodeError, match="Permission denied"):
            decode_frames(str(path), FrameSpec(4))

    @pytest.mark.parametrize("name", ["half.mp4", "half.mkv"])
    def test_half_a_file_is_used_as_far_as_it_goes_and_says_so(self, name):
        frames = decode_frames(str(clip(name)), FrameSpec(32))
        numbers = numbers_of(frames.pixels)
        assert numbers[0] == 0
        assert numbers == sorted(numbers)
        assert 40 <= numbers[-1] < 72
        assert any("s of 5.00 s announced" in warning for warning in frames.warnings)

    @pytest.mark.parametrize("name", ["half.mp4", "half.mkv"])
    def test_a_clip_in_the_missing_half_is_refused(self, name):
        with pytest.raises(VideoDecodeError, match=r"clip starts at 4 s .* probably truncated"):
            decode_frames(str(clip(name)), FrameSpec(4), (4.0, 5.0))

    @pytest.mark.parametrize("name", ["half.mp4", "half.mkv"])
    def test_a_clip_in_the_intact_half_needs_no_warning(self, name):
        frames = decode_frames(str(clip(name)), FrameSpec(13), (0.5, 1.0))
        assert numbers_of(frames.pixels) == list(range(12, 25))
        assert not any("announced" in warning for warning in frames.warnings)

    def test_a_frame_too_many_in_the_header_is_noted(self):
        frames = decode_frames(str(clip("no_last_picture.mp4")), FrameSpec(8))
        assert any("did not come out" in warning for warning in frames.warnings)

    def test_damage_in_the_middle_costs_frames_and_is_noted(self):
        frames = decode_frames(str(clip("damaged.mp4")), FrameSpec(120))
        assert frames.pixels.shape[0] == 120
        assert any("could not be decoded" in warning for warning in frames.warnings)
        numbers = numbers_of(frames.pixels)
        assert set(range(24)) <= set(numbers)
