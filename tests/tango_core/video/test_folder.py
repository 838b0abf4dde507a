import pytest

from tango_core.video.folder import FolderReader, list_images


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


def test_times_follow_the_rate(tmp_path):
    for number in range(4):
        (tmp_path / f"{number}.jpg").touch()
    assert FolderReader(str(tmp_path), fps=2.0).times.tolist() == [0.0, 0.5, 1.0, 1.5]
