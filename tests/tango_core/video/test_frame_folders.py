"""Folders of images as clips: order, times, bounds, sizes."""

import pytest
from numbered_videos import draw, numbers_of, write_folder
from PIL import Image

from tango_core.video import FrameSpec, VideoDecodeError, decode_frames
from tango_core.video.folder import list_images


class TestFolder:
    def test_bounds_are_image_numbers_at_three_per_second(self, tmp_path):
        folder = write_folder(tmp_path / "frames", 30)
        frames = decode_frames(str(folder), FrameSpec(7), (2.0, 4.0))
        assert numbers_of(frames.pixels) == [6, 7, 8, 9, 10, 11, 12]

    def test_bounds_behind_the_last_image_are_refused(self, tmp_path):
        folder = write_folder(tmp_path / "frames", 6)
        with pytest.raises(VideoDecodeError, match=r"its images end at 2.00 s"):
            decode_frames(str(folder), FrameSpec(4), (3.0, 4.0))

    def test_one_frame_per_second_is_for_files_only(self, tmp_path):
        """lmms-eval's LLaVA-Video spreads all its frames over a folder."""
        folder = write_folder(tmp_path / "frames", 30)
        frames = decode_frames(str(folder), FrameSpec(4, sampling="per_second"))
        assert numbers_of(frames.pixels) == numbers_of(
            decode_frames(str(folder), FrameSpec(4)).pixels
        )

    def test_an_empty_folder_is_refused(self, tmp_path):
        with pytest.raises(VideoDecodeError, match="holds no frames"):
            decode_frames(str(tmp_path), FrameSpec(4))

    def test_an_unreadable_image_is_named(self, tmp_path):
        folder = write_folder(tmp_path / "frames", 4)
        (folder / "00003.png").write_bytes(b"\x89PNG broken")
        with pytest.raises(VideoDecodeError, match=r"00003\.png: not a readable image"):
            decode_frames(str(folder), FrameSpec(4))

    def test_images_of_other_sizes_are_stretched_to_the_first(self, tmp_path):
        folder = write_folder(tmp_path / "frames", 2)
        Image.fromarray(draw(2)).resize((64, 32), Image.Resampling.NEAREST).save(
            folder / "00002.png"
        )
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
