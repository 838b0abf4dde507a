"""Only regular files are read, and documents of any kind end in a value or one line."""

import os

import pytest

from pipeline.cache.names import SourceMissingError, source_fingerprint
from tango_core.local_files import NotRegularError, open_regular, parse_json, read_text
from tango_core.video import FrameSpec, VideoDecodeError, decode_frames


def special(folder, kind):
    """A path at which something of this kind is, named like a video."""
    path = folder / "film.mp4"
    if kind == "FIFO":
        os.mkfifo(path)
    elif kind == "device":
        path.symlink_to("/dev/zero")
    else:
        path.mkdir()
    return path


@pytest.mark.parametrize("kind", ["FIFO", "device", "directory"])
def test_what_is_no_file_is_refused_without_waiting(kind, tmp_path):
    path = special(tmp_path, kind)
    with pytest.raises(NotRegularError, match="is not a regular file"):
        open_regular(path)
    if kind == "directory":
        return
    for hash_content in (False, True):
        with pytest.raises(SourceMissingError, match=r"film\.mp4: is not a regular"):
            source_fingerprint(str(path), hash_content)
    with pytest.raises(VideoDecodeError, match=r"film\.mp4: is not a regular"):
        decode_frames(str(path), FrameSpec(4))


def test_a_document_is_read_up_to_a_bound(tmp_path):
    path = tmp_path / "a.json"
    path.write_bytes("\ufeff{}".encode())
    assert read_text(path) == "{}"
    path.write_bytes(b"1" * 2_000_000)
    with pytest.raises(ValueError, match="larger than 1 MiB"):
        read_text(path, 1 << 20)
    path.write_bytes(b"\xff")
    with pytest.raises(ValueError, match="not UTF-8 text"):
        read_text(path)


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("[" * 200_000 + "]" * 200_000, "nested too deeply"),
        ("1" * 10_000, "not usable JSON"),
        ("{", "not JSON .* at line 1, column"),
    ],
)
def test_json_that_cannot_be_used_is_one_line(text, reason):
    with pytest.raises(ValueError, match=f"^a.json: .*{reason}") as caught:
        parse_json(text, "a.json")
    assert len(str(caught.value)) < 300


def test_an_image_that_is_a_pipe_fails_its_clip(tmp_path):
    os.mkfifo(tmp_path / "1.jpg")
    with pytest.raises(VideoDecodeError, match="is not a regular file"):
        decode_frames(str(tmp_path), FrameSpec(4))
